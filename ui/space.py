"""Write the folder of a Hugging Face Space: ``ebm space``."""

from ebm_app.cli.command_line import run_script
from ebm_app.cli.space import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
