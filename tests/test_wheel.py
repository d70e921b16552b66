"""What a user installs: the wheel of a Space holds all that page and bundled models need."""

from zipfile import ZipFile

import pytest
from conftest import ROOT, error_of

pytestmark = pytest.mark.process


def test_the_folder_of_a_space_holds_the_package_and_its_models(script, tmp_path):
    main = script("ui/space.py").main
    files = main([str(tmp_path / "space"), "--model", str(ROOT / "ebm_app/pretrained/digits")])
    names = {name.rpartition("/")[2] for name in files["files"]}
    assert {"app.py", "README.md", "requirements.txt", "model"} < names
    (wheel,) = (tmp_path / "space").glob("*.whl")
    assert (tmp_path / "space" / "requirements.txt").read_text() == f"./{wheel.name}[ui]\n"
    assert "find_models('model', None)" in (tmp_path / "space" / "app.py").read_text()
    with ZipFile(wheel) as file:
        packed = set(file.namelist())
    package = (path for path in (ROOT / "ebm_app").rglob("*") if path.is_file())
    ours = {
        path.relative_to(ROOT).as_posix() for path in package if "__pycache__" not in str(path)
    }
    assert ours <= packed and "ebm_app/pretrained/mnist/model.safetensors" in ours
    error_of(main, [str(tmp_path / "space")])
