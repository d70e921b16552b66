"""Train an energy-based model of images: ``ebm train``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.train import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
