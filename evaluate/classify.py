"""Measure the accuracy of a class-conditional model: ``ebm classify``."""

from ebm_app.cli.classify import main
from ebm_app.cli.command_line import run_script

if __name__ == "__main__":
    raise SystemExit(run_script(main))
