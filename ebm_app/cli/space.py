"""Write the folder of a Hugging Face Space that serves the web page of a model.

python ui/space.py runs/space --model digits

To test it locally, run pip install -r requirements.txt and python app.py in the folder.
"""

import shutil
from collections.abc import Sequence
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from ebm_app.cli.command_line import Positional, argument, parse
from ebm_app.folders import CONFIG_FILE, WEIGHTS_FILE, find_folder
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting

#: Environment markers of the requirements of the page
MARKERS = ("", 'extra == "plots"', 'extra == "ui"')
#: Folder of this package
PACKAGE = Path(__file__).resolve().parent.parent
APP = '''"""Web page of ebm_app on a Hugging Face Space."""

import os

from ebm_app.cli.app import main

port = os.environ.get("GRADIO_SERVER_PORT", "7860")
main(["--model", {model!r}, "--host", "0.0.0.0", "--port", port, "--no_auth"])
'''
CARD = """---
title: "Draw a digit: how likely is it?"
short_description: Likelihoods and samples from an energy-based model
license: mit
tags: [energy-based-model, likelihood, anomaly-detection, image-generation]
sdk: gradio
sdk_version: {}
app_file: app.py
---

Generate images from an energy-based model, and compute the log-likelihood of images.
"""


@configuration(kw_only=True)
class Arguments:
    output_dir: Positional[str] = argument("folder to write; must be empty or new")
    model: str = setting("bundled name, hub id or folder, which is copied", "mnist")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the folder; return its files."""
    args = parse(Arguments, __doc__, argv)
    folder, model = Path(args.output_dir), args.model
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty. Use another folder.")
    source = find_folder(model)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "ebm_app", ignore=ignored)
    if Path(model).is_dir():
        model = "model"
        (folder / model).mkdir()
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            shutil.copy(source / name, folder / model / name)
    texts = {"app.py": APP.format(model=model), "README.md": CARD.format(version("gradio"))}
    texts["requirements.txt"] = "\n".join(requirements()) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {"files": sorted(str(file) for file in folder.iterdir())}


def requirements() -> list[str]:
    """Return the requirements of this package with its extras "plots" and "ui"."""
    pairs = [requirement.partition(";") for requirement in requires("ebm_app") or []]
    needed = [name.strip() for name, _, marker in pairs if marker.strip() in MARKERS]
    return [name for name in needed if not name.startswith("ebm_app")]
