"""Train an energy-based model of images: ``ebm train``."""

import sys

from ebm_app.cli.command_line import run_script
from ebm_app.cli.train import main

if __name__ == "__main__":
    sys.exit(run_script(main))
