"""Distil a model into a one-pass network: ``ebm distill``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.distill import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
