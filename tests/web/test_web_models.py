"""Models that the page offers."""

import shutil

import pytest

from ebm_app.cli import app
from ebm_app.cli.app import find_models
from ebm_app.folders import BUNDLED
from ebm_app.utils.errors import UserError
from ebm_app.web.models import Models, title_of


def test_each_model_folder_is_listed_once(page_files, folder, tmp_path):
    names = ["grey", "colour", "labelled", "grey/checkpoint-5"]
    assert list(find_models(str(folder / "grey"), str(folder))) == names
    assert list(find_models(None, str(folder))) == ["colour", "grey", "labelled", names[-1]]
    shutil.copytree(folder / "colour", tmp_path / "grey")
    found = find_models(str(tmp_path / "grey"), str(folder))
    assert found["grey"] == tmp_path / "grey" and found["grey (3)"] == folder / "grey"
    models = Models(found)
    for name in (str(folder / "colour"), "../grey", ""):
        with pytest.raises(UserError, match="model"):
            models.load(name)


def test_bundled_models_are_listed_by_default(monkeypatch):
    monkeypatch.setattr(app, "BUNDLED", BUNDLED)
    others = ["cifar10", "digits", "digits-energy", "fashion", "mnist-energy", "mnist-latent"]
    assert list(find_models(None, None)) == ["mnist", *others]
    assert list(find_models("digits", None))[:2] == ["digits", "mnist"]
    title = title_of("digits-energy", BUNDLED / "digits-energy")
    assert title == "digits-energy: digits, 8 × 8 pixels"
    assert title_of("none", BUNDLED) == "none"


def test_model_is_reloaded_when_its_file_changes(folder, tmp_path):
    shutil.copytree(folder / "grey", tmp_path / "run")
    models = Models({"run": tmp_path / "run"})
    loaded = models.load("run")
    assert models.load("run") is loaded
    loaded.save_pretrained(tmp_path / "run")
    assert models.load("run") is not loaded
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="model.safetensors"):
        models.load("run")
