"""Write the folder of a Hugging Face Space that serves the page: app.py, requirements.txt, a card,
and this package as a wheel.

python ui/space.py runs/space --model digits

Started on this machine: pip install -r requirements.txt and python app.py, in that folder.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ebm_app.io.command_line import Positional, argument, parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import configuration, setting
from ebm_app.io.start import run_script
from ebm_app.models.folders import CONFIG_FILE, WEIGHTS_FILE, find_folder

ROOT = Path(__file__).resolve().parent.parent
APP = '''"""The page of ebm_app, on a Hugging Face Space."""

from ebm_app.web.app import build_app
from ebm_app.web.models import Models, find_models

build_app(Models(find_models({model!r}, None), "cpu", "data"), seed=0).launch()
'''
CARD = """---
title: {title}
sdk: gradio
sdk_version: {gradio}
app_file: app.py
---

Draw images from an energy-based model, and find the log-likelihood of images.
"""


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    output_dir: Positional[str] = argument("folder of the Space, which is made")
    model: str = setting("a bundled name, a hub id, or a folder, which is copied", "mnist")
    title: str = setting("of the Space", "Energy-based model of images")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the folder; the files in it."""
    args = parse(Arguments, __doc__, argv)
    folder = Path(args.output_dir)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    model = args.model
    if Path(model).is_dir():
        model = "model"
        (folder / model).mkdir()
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            shutil.copy(find_folder(args.model) / name, folder / model / name)
    with TemporaryDirectory() as source:  # what an earlier build left must not come along
        shutil.copytree(ROOT / "ebm_app", Path(source) / "ebm_app")
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", source]
        if subprocess.run([*build, "--wheel-dir", str(folder)]).returncode:
            raise UserError("pip could not build the wheel: see its message above")
    (wheel,) = folder.glob("*.whl")
    card = CARD.format(title=args.title, gradio=version("gradio"))
    texts = {"app.py": APP.format(model=model), "README.md": card}
    for name, text in {**texts, "requirements.txt": f"./{wheel.name}[ui]\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {"files": sorted(str(file) for file in folder.iterdir())}


if __name__ == "__main__":
    sys.exit(run_script(main))
