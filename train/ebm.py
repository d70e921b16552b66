"""Train an energy-based model of images: ``python train/ebm.py``."""

from ebm_app.cli.train import main
from ebm_app.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
