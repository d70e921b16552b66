"""Distil a model into an energy network: ``python train/energy.py``."""

from ebm_app.cli.train_energy import main
from ebm_app.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
