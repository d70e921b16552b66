"""The web page: ``ebm ui``."""

import sys

from ebm_app.utils.start import run_script
from ebm_app.web.command import Arguments, main

__all__ = ["Arguments", "main"]

if __name__ == "__main__":
    sys.exit(run_script(main))
