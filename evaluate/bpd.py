"""Bits per dim of a model on held-out images: ``ebm evaluate``."""

import sys

from ebm_app.cli.bpd import Arguments, main  # noqa: F401 - its flags
from ebm_app.cli.command_line import run_script

if __name__ == "__main__":
    sys.exit(run_script(main))
