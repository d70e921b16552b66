"""Fit a normalising flow: ``ebm flow``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.train_flow import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
