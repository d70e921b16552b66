"""Check a model against identities of exact models: ``ebm selftest``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.selftest import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
