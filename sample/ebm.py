"""Draw images from a model: ``ebm sample``."""

import sys

from ebm_app.cli.sample import Arguments, main  # noqa: F401 - its flags
from ebm_app.utils.start import run_script

if __name__ == "__main__":
    sys.exit(run_script(main))
