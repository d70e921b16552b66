"""Estimate the mutual information of forty known distributions."""

import sys

from ebm_app.cli.command_line import run_script
from studies.mi_benchmark import main

if __name__ == "__main__":
    sys.exit(run_script(main))
