"""The web page: ``ebm ui``."""

import sys

from ebm_app.cli.app import Arguments, main
from ebm_app.cli.command_line import run_script

__all__ = ["Arguments", "main"]

if __name__ == "__main__":
    sys.exit(run_script(main))
