"""Measure the cost of training steps."""

from ebm_app.cli.command_line import run_script
from studies.speed import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
