"""Compute bits per dim on held-out images: ``ebm bpd``."""

from ebm_app.cli.bpd import main
from ebm_app.cli.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
