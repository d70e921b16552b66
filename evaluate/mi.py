"""Estimate mutual information, of the paper's Gaussians or of your rows: ``ebm mi``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.mi import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
