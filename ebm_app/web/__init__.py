"""Web app: one module per page, and shared components."""

import os

#: Names of this machine
LOCAL_HOSTS = ("127.0.0.1", "localhost")
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it at import
