"""Log-likelihoods of held-out images and examples that come with a model."""

import math
import re
import shutil

import numpy as np
import pytest
import torch
from conftest import NET, call, error_of, write_mnist
from PIL import Image

from ebm_app.data.images import load_images
from ebm_app.image_models.ebm import EBM
from ebm_app.io.records import read_json, write_json
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.config import EBMConfig
from ebm_app.models.folders import BUNDLED
from ebm_app.web.app import build_app
from ebm_app.web.models import Models
from ebm_app.web.score import held_out as held
from ebm_app.web.score import shipped, uploads
from ebm_app.web.score.examples import source_of

pytestmark = pytest.mark.usefixtures("page_files")


def with_record(folder, tmp_path, **changes):
    """A copy of the model "grey" with a record of held-out images, and its page's things."""
    copy = shutil.copytree(folder / "grey", tmp_path / "run")
    models = Models({"run": copy})
    ebm = models.load("run")
    values = torch.linspace(-90, -51, 40, dtype=torch.float64) + 0.001
    shipped.write_likelihoods(copy, ebm, held.fingerprint(ebm), values, seed=0)
    record = read_json(copy / "held_out.json")
    write_json(copy / "held_out.json", {**record, **changes})
    return ebm, held.HeldOutImages(folders=models.folders), record


def test_likelihoods_that_come_with_a_model_are_used_at_once(folder, tmp_path, monkeypatch):
    ebm, held_out, record = with_record(folder, tmp_path)
    monkeypatch.setattr(ebm, "log_prob", None)  # nothing is computed
    (found,) = held_out.likelihoods(ebm, "run")
    assert found.complete and found.log_prob.tolist() == [-90.0 + i for i in range(40)]
    assert (record["estimator"], record["seed"], record["eps"]) == ("elbo", 0, 1e-4)


@pytest.mark.parametrize("change", [{"weights": "other"}, {"estimator": "ratio"}])
def test_likelihoods_of_other_weights_are_not_used(folder, tmp_path, change):
    ebm, held_out, _ = with_record(folder, tmp_path, **change)
    *_, last = held_out.likelihoods(ebm, "run")
    expected = ebm.log_prob(load_images("digits").test[:40], seed=held.SEED).log_prob
    assert torch.allclose(last.log_prob, expected, atol=1e-3)


def test_a_damaged_record_is_explained_without_its_folder(folder, tmp_path):
    ebm, held_out, _ = with_record(folder, tmp_path, log_prob=[1.0, "2"])
    said = error_of(lambda: list(held_out.likelihoods(ebm, "run")))
    assert said.startswith("run/held_out.json is damaged") and str(tmp_path) not in said


@pytest.mark.parametrize("name", ["digits", "mnist", "mnist-latent"])
def test_bundled_models_have_likelihoods_of_their_weights_and_examples(name, tmp_path):
    ebm = EBM.from_pretrained(name)
    found = shipped.read_likelihoods(BUNDLED / name, ebm, held.fingerprint(ebm))
    assert len(found) == 297 and found.std() > 1
    card = (BUNDLED / name / "README.md").read_text(encoding="utf-8")
    bits = float(re.search(r"bits per dim by `elbo` \| \*\*([\d.]+)", card)[1])
    mean = to_bits_per_dim(found, math.prod(ebm.config.image_shape)).mean().item()
    assert mean == pytest.approx(bits, abs=0.05)
    files = shipped.example_files(BUNDLED / name)
    assert len(files) == 10
    for file in files:
        prepared = uploads.read_upload(file, ebm.config)
        assert prepared.hints == () and "which changed none" in prepared.steps[0]
        assert Image.open(file).width >= 220


def test_the_first_likelihood_that_ships_is_that_of_the_first_example():
    ebm = EBM.from_pretrained("digits")
    images = load_images("digits").test[:297]
    noise = dequantisation_noise(1, images, held.SEED)[:, :4]
    expected = ebm.log_prob(images[:4], noise=noise, seed=held.SEED).log_prob
    found = shipped.read_likelihoods(BUNDLED / "digits", ebm, held.fingerprint(ebm))
    assert torch.allclose(found[:4], expected, atol=0.05)
    files = shipped.example_files(BUNDLED / "digits")
    seen = [uploads.preprocess(file, ebm.config) for file in files]
    assert torch.equal(torch.cat(seen), images[:10] / 16)


def test_a_digit_is_likelier_than_its_pixels_shuffled_and_those_than_noise():
    ebm = EBM.from_pretrained("digits")
    image = load_images("digits").test[:1] / 16
    shuffled = image.flatten()[torch.from_numpy(np.random.RandomState(0).permutation(64))]
    noise = torch.from_numpy(np.random.RandomState(0).randint(0, 17, 64)) / 16
    versions = [image, shuffled.view_as(image), noise.view_as(image).float()]
    bits = [ebm.log_prob(x).bits_per_dim.item() for x in versions]
    assert bits[0] + 1 < bits[1] < bits[2] - 1
    inverted = ebm.log_prob(1 - image).bits_per_dim.item()
    assert bits[0] + 1 < inverted


def test_the_tool_writes_what_the_page_reads(script, folder, tmp_path, page_files):
    tool = script("evaluate/held_out.py")
    copy = shutil.copytree(folder / "grey", tmp_path / "run")
    assert call(tool, copy, "--output_dir", copy, "--device", "cpu") == 0
    ebm = EBM.from_pretrained(copy)
    found = shipped.read_likelihoods(copy, ebm, held.fingerprint(ebm))
    *_, computed = held.HeldOutImages().likelihoods(ebm, "run")
    assert torch.allclose(found, computed.log_prob, atol=0.0051)
    assert len(shipped.example_files(copy)) == 10
    assert call(tool, folder / "colour", "--output_dir", copy, "--device", "cpu") == 2


def test_every_model_is_offered_examples_of_its_data(folder, tmp_path):
    models = Models({"mnist": BUNDLED / "mnist", "grey": folder / "grey"})
    rows = [
        block for block in build_app(models).blocks.values() if block.get_block_name() == "dataset"
    ]
    assert [(row.parent.visible, len(row.samples)) for row in rows] == [(True, 10), (False, 10)]
    write_mnist(tmp_path / "FashionMNIST" / "raw")
    config = EBMConfig("fashion_mnist", (1, 28, 28), 256, net=NET)
    EBM(config).save_pretrained(tmp_path / "fashion")
    here = held.HeldOutImages(tmp_path)
    assert source_of(tmp_path / "fashion", here) == ("fashion_mnist", (1, 28, 28), 256)
    assert source_of(tmp_path / "fashion", held.HeldOutImages(folder)) is None
    assert source_of(folder / "grey", here) == BUNDLED / "digits"
    assert source_of(folder / "colour", here) is None and source_of(folder, here) is None
    models = Models({"fashion": tmp_path / "fashion"}, data_root=str(tmp_path))
    (row,) = [
        block for block in build_app(models).blocks.values() if block.get_block_name() == "dataset"
    ]
    for levels, (sample,) in zip(here.images(config), row.samples, strict=False):
        assert torch.equal(uploads.preprocess(sample["path"], config)[0], levels / 255)
