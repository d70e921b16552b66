"""Web page: one module per tab, and shared components."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it at import
