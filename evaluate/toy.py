"""Compare estimators of log ratios on the paper's toy problems: ``ebm toy``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.toy import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
