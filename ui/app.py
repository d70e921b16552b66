"""Serve the web app, see ``ebm_app.web.__main__``.

python ui/app.py --model runs/digits
"""

from ebm_app.command_line import run_script
from ebm_app.web.__main__ import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
