"""Draw images from a model: ``ebm sample``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.sample import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
