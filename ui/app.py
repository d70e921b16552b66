"""Serve the web page: ``ebm ui``."""

import sys

from ebm_app.cli.app import Arguments, main  # noqa: F401 - its flags
from ebm_app.cli.command_line import run_script

if __name__ == "__main__":
    sys.exit(run_script(main))
