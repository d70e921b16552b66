"""Measure the cost of training steps: a study of this checkout."""

import sys

from ebm_app.cli.command_line import run_script
from studies.speed import main

if __name__ == "__main__":
    sys.exit(run_script(main))
