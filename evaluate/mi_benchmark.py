"""Estimate the mutual information of forty known distributions."""

from ebm_app.cli.command_line import run_script
from studies.mi_benchmark import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
