"""Serve the web app: ``ebm ui``."""

from ebm_app.cli.app import main
from ebm_app.cli.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
