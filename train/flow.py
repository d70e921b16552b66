"""Fit a normalising flow: ``python train/flow.py``."""

from ebm_app.cli.train_flow import main
from ebm_app.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
