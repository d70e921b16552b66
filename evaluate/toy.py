"""Compare estimators of log ratios on the paper's toy problems."""

import sys

from ebm_app.cli.command_line import run_script
from studies.ratio_tables import toy as main

if __name__ == "__main__":
    sys.exit(run_script(main))
