"""Compare the errors that estimators state with the spread of repeats."""

from ebm_app.cli.command_line import run_script
from studies.errors import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
