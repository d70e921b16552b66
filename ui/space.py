"""Write the folder of a Hugging Face Space: ``ebm space``."""

import sys

from ebm_app.cli.command_line import run_script
from ebm_app.cli.space import main

if __name__ == "__main__":
    sys.exit(run_script(main))
