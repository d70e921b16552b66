"""Compare the paper's error bound of log densities with the error."""

from ebm_app.cli.command_line import run_script
from studies.bounds import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
