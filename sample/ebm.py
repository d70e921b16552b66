"""Draw images from a model: ``ebm sample``."""

import sys

from ebm_app.cli.command_line import run_script
from ebm_app.cli.sample import main

if __name__ == "__main__":
    sys.exit(run_script(main))
