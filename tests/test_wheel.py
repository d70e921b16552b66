"""What a user installs: the wheel holds all that the page and the bundled models need."""

import shutil
import subprocess
import sys
from zipfile import ZipFile

import pytest
from conftest import ROOT

pytestmark = pytest.mark.process


def test_a_wheel_holds_the_bundled_models_with_all_their_files(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ebm_app", tmp_path / "ebm_app", ignore=left_out)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "--quiet"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as file:
        names = set(file.namelist())
    package = (tmp_path / "ebm_app").rglob("*")
    files = {path.relative_to(tmp_path).as_posix() for path in package if path.is_file()}
    assert files <= names
    examples = [f"example_{index}.png" for index in range(10)]
    for model in ("digits", "mnist", "mnist-latent"):
        for name in ("config.json", "model.safetensors", "held_out.json", *examples):
            assert f"ebm_app/pretrained/{model}/{name}" in names
