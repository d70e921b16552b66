"""Which models the page offers, and when it opens them."""

import shutil

import pytest

from ebm_app.config import EBMConfig
from ebm_app.folders import BUNDLED, read_config
from ebm_app.utils.errors import UserError
from ebm_app.web import models as page_models
from ebm_app.web.models import Models, find_models


def test_only_folders_with_a_model_are_offered_each_once(page_files, folder, tmp_path):
    names = ["grey", "colour", "told", "grey/checkpoint-5"]
    assert list(find_models(str(folder / "grey"), str(folder))) == names
    assert list(find_models(None, str(folder))) == ["colour", "grey", "told", names[-1]]
    shutil.copytree(folder / "colour", tmp_path / "grey")
    found = find_models(str(tmp_path / "grey"), str(folder))
    assert found["grey"] == tmp_path / "grey" and found["grey (3)"] == folder / "grey"
    datasets = {name: read_config(EBMConfig, path).dataset for name, path in found.items()}
    of_digits = {name for name, dataset in datasets.items() if dataset == "digits"}
    assert of_digits == {"grey (3)", "told", "grey/checkpoint-5"}
    models = Models(found)
    for name in (str(folder / "colour"), "../grey", ""):
        with pytest.raises(UserError, match="unknown model .*: .*choose one of colour, grey"):
            models.load(name)


def test_the_bundled_models_are_offered_by_default(monkeypatch):
    monkeypatch.setattr(page_models, "BUNDLED", BUNDLED)
    names = ["mnist", "digits", "digits-energy", "mnist-energy", "mnist-latent"]
    assert list(find_models(None, None)) == names
    assert list(find_models("digits", None))[:2] == ["digits", "mnist"]
    lines = [
        page_models.in_a_line(name, BUNDLED / name) for name in ("digits-energy", "mnist-latent")
    ]
    assert lines == [
        "digits-energy: digits, 8 × 8 pixels, an energy in one pass",
        "mnist-latent: mnist, 28 × 28 pixels, latent",
    ]
    assert page_models.in_a_line("none", BUNDLED) == "none"


def test_a_model_is_kept_until_its_files_change(folder, tmp_path):
    shutil.copytree(folder / "grey", tmp_path / "run")
    models = Models({"run": tmp_path / "run"})
    kept = models.load("run")
    assert models.load("run") is kept
    kept.save_pretrained(tmp_path / "run")
    assert models.load("run") is not kept
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="^run/model.safetensors is missing"):
        models.load("run")
