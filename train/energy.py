"""Distil a model into an energy network: ``ebm train_energy``."""

import sys

from ebm_app.cli.command_line import run_script
from ebm_app.cli.train_energy import main

if __name__ == "__main__":
    sys.exit(run_script(main))
