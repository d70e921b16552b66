"""Train and score an autoregressive model."""

from ebm_app.cli.command_line import run_script
from studies.autoregressive import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
