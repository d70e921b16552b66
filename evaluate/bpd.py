"""Bits per dim of a model on held-out images: ``ebm evaluate``."""

import sys

from ebm_app.commands.evaluate import Arguments, main
from ebm_app.io.start import run_script

__all__ = ["Arguments", "main"]

if __name__ == "__main__":
    sys.exit(run_script(main))
