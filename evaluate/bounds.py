"""Compare the paper's error bound of log densities with the error."""

import sys

from ebm_app.cli.command_line import run_script
from studies.bounds import main

if __name__ == "__main__":
    sys.exit(run_script(main))
