"""Distil a model into an energy network: ``ebm distill`` with its default target."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.distill import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
