"""Distil a model into an energy network: ``ebm energy``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.train_energy import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
