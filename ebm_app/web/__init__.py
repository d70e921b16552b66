"""Web page: one module per tab, and shared components."""

import os

#: Names of this machine
LOCAL_HOSTS = ("127.0.0.1", "localhost")
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it at import
