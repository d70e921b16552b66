"""Estimate mutual information from your rows, or for the paper's Gaussians."""

from ebm_app.cli.command_line import run_script
from studies.ratio_tables import mi as main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
