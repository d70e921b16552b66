"""Sampling by the command, and mistakes in a model, a data set or a setting."""

import json
import shutil

import pytest
from conftest import call
from PIL import Image

from ebm_app.cli import bpd, sample


def test_images_depend_only_on_the_seed(folder, capsys, tmp_path):
    flags = "--sampler annealed_hmc --num_images 3 --num_steps 2 --device cpu".split()
    flags += "--sampler_args num_leapfrog_steps=1 final_steps=0".split()
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        place = ["--seed", seed, "--output_dir", tmp_path / name]
        assert call(sample, folder / "grey", *flags, *place) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["output_dir"] == str(tmp_path / "c") and figures["num_files"] == 4
    assert figures["nfe"] > 0 and figures["seconds"] > 0
    images = [(tmp_path / name / "00002.png").read_bytes() for name in "abc"]
    assert images[0] == images[1] != images[2]
    assert Image.open(tmp_path / "a" / "00000.png").size == (8, 8)
    assert (tmp_path / "a" / "grid.png").is_file()


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        (bpd, ["nowhere"], "nowhere"),
        (bpd, ["{grey}", "--dataset", "mnist", "--data_root", "none"], "mnist"),
        (bpd, ["{colour}", "--dataset", "digits"], "got shape (1, 8, 8)"),
        (bpd, ["{grey}", "--eps", "0"], "eps"),
        (bpd, ["{grey}", "--estimator", "guess"], "guess"),
        (sample, ["{damaged}"], "damaged"),
        (sample, ["{grey}", "--sampler_args", "end_variance=guess"], "end_variance"),
        (sample, ["{grey}", "--device", "tpu"], "tpu"),
    ],
)
def test_mistake_is_one_sentence(folder, capsys, tmp_path, module, words, message):
    damaged = tmp_path / "damaged"
    shutil.copytree(folder / "grey", damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    names = {"grey": folder / "grey", "colour": folder / "colour", "damaged": damaged}
    flags = [word.format(**names) for word in words]
    assert call(module, *flags, "--output_dir", tmp_path / "out") == 2
    *_, error = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ") and message in error
