"""Compare estimators of log ratios on the paper's toy problems."""

from ebm_app.cli.command_line import run_script
from studies.ratio_tables import toy as main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
