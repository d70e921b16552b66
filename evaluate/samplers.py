"""Compare samplers by quality and cost: ``ebm samplers``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.samplers import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
