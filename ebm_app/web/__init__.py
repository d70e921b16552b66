"""The web page: a module for each tab, and what the tabs share."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read once, when gradio is imported
