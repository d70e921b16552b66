"""Write the folder of a Hugging Face Space that serves the page: app.py, requirements.txt, a card,
and this package.

python ui/space.py runs/space --model digits

Started on this machine: pip install -r requirements.txt and python app.py, in that folder.
"""

import shutil
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import Positional, argument, parse, run_script
from ebm_app.folders import CONFIG_FILE, WEIGHTS_FILE, find_folder
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.files import open_file

ROOT = Path(__file__).resolve().parent.parent
APP = '''"""The page of ebm_app, on a Hugging Face Space."""

from ebm_app.web.app import build_app
from ebm_app.web.models import Models, find_models

build_app(Models(find_models({model!r}, None), "cpu", "data"), seed=0).launch()
'''
CARD = """---
title: Energy-based model of images
sdk: gradio
sdk_version: {}
app_file: app.py
---

Draw images from an energy-based model, and find the log-likelihood of images.
"""


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    output_dir: Positional[str] = argument("folder of the Space, which is made")
    model: str = setting("a bundled name, a hub id, or a folder, which is copied", "mnist")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the folder; the files in it."""
    args = parse(Arguments, __doc__, argv)
    folder = Path(args.output_dir)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: give another folder")
    source, files = find_folder(args.model), (CONFIG_FILE, WEIGHTS_FILE)
    for name in files:
        open_file(source / name).close()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ebm_app", folder / "ebm_app", ignore=ignored)
    model = args.model
    if Path(model).is_dir():
        model = "model"
        (folder / model).mkdir()
        for name in files:
            shutil.copy(source / name, folder / model / name)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["plots"], *extras["ui"][1:]]  # the first: plots
    texts = {"app.py": APP.format(model=model), "README.md": CARD.format(version("gradio"))}
    for name, text in {**texts, "requirements.txt": "\n".join(needed) + "\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {"files": sorted(str(file) for file in folder.iterdir())}


if __name__ == "__main__":
    sys.exit(run_script(main))
