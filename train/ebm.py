"""Train an energy-based model of images: ``ebm train``."""

import sys

from ebm_app.commands.train import Arguments, main
from ebm_app.io.start import run_script

__all__ = ["Arguments", "main"]

if __name__ == "__main__":
    sys.exit(run_script(main))
