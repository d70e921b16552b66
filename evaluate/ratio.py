"""Estimate the log density ratio of two samples: ``ebm ratio``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.ratio import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
