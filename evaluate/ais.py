"""Estimate log Z with annealed chains: ``ebm ais``."""

from ebm_app.cli.ais import main
from ebm_app.cli.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
