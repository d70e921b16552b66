"""Test whether images are unusual: ``ebm anomaly``."""

from ebm_app.cli.anomaly import main
from ebm_app.cli.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
