"""Compare an amortised likelihood with the bound that it predicts."""

from ebm_app.cli.command_line import run_script
from studies.amortised import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
