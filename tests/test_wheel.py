"""What a user installs: the wheel holds all that the page and the bundled models need, and so does
the folder of a Space."""

import shutil
import subprocess
import sys
from zipfile import ZipFile

import pytest
from conftest import ROOT, error_of

pytestmark = pytest.mark.process


def package_files(root=ROOT):
    files = (path for path in (root / "ebm_app").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in files if "__pycache__" not in str(path)}


def test_a_wheel_holds_the_package_and_its_models(tmp_path):
    source = tmp_path / "source"  # what an earlier build left must not come along
    shutil.copytree(ROOT / "ebm_app", source / "ebm_app")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", str(source)]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as file:
        assert package_files() <= set(file.namelist())
    assert "ebm_app/pretrained/mnist/model.safetensors" in package_files()


def test_the_folder_of_a_space_holds_the_package_and_a_model(script, tmp_path):
    main, folder = script("ui/space.py").main, tmp_path / "space"
    main([str(folder), "--model", str(ROOT / "ebm_app/pretrained/digits")])
    assert package_files(folder) == package_files()
    assert "find_models('model', None)" in (folder / "app.py").read_text()
    assert (folder / "model" / "config.json").is_file()
    needed = (folder / "requirements.txt").read_text().splitlines()
    assert needed[-1].startswith("gradio") and not any("ebm_app" in name for name in needed)
    error_of(main, [str(folder)])
    for model in ("nothing", ""):
        error_of(main, [str(tmp_path / "other"), "--model", model])
    assert not (tmp_path / "other").exists()
