"""Estimate the log density ratio of two samples: ``ebm ratio``."""

import sys

from ebm_app.cli.command_line import run_script
from ebm_app.cli.ratio import main

if __name__ == "__main__":
    sys.exit(run_script(main))
