"""Fit a normalising flow: ``ebm train_flow``."""

import sys

from ebm_app.cli.command_line import run_script
from ebm_app.cli.train_flow import main

if __name__ == "__main__":
    sys.exit(run_script(main))
