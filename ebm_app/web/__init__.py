"""Web page: one module per tab, and the components that the tabs share."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it at import
