"""Comparison of two models: settings that differ, and the paired difference of their bits."""

import json

import pytest
import torch
from conftest import call

from ebm_app.cli import compare
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.utils.tensors import standard_error


def test_two_models_are_compared_on_the_same_images(folder, capsys, tmp_path):
    runs = [folder / "grey", folder / "labelled"]
    flags = ["--limit", 5, "--repeats", 2, "--device", "cpu", "--output_dir", tmp_path]
    assert call(compare, *runs, *flags) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    levels = load_images("digits").test[:5]
    noise = dequantisation_noise(2, levels, 0)
    one, other = (
        EBM.from_pretrained(run).likelihood(levels, noise=noise).bits_per_dim.double()
        for run in runs
    )
    assert figures["difference"] == pytest.approx((one - other).mean().item(), abs=1e-5)
    assert figures["stderr"] == pytest.approx(standard_error(one - other).item(), rel=1e-3)
    rows = {row["setting"]: (row["first"], row["second"]) for row in figures["settings"]}
    assert rows == {"ebm.num_classes": ("0", "3")}
    assert call(compare, runs[0], runs[0], *flags) == 2


def test_models_and_likelihoods_have_short_reprs(folder):
    ebm = EBM.from_pretrained(folder / "grey")
    assert repr(ebm).startswith("EBM of digits: images 1x8x8 with 17 levels")
    result = ebm.likelihood(torch.zeros(2, 1, 8, 8), "time_integral")
    assert repr(result).startswith("Likelihood of 2 images") and len(repr(result)) < 150
    table = result.to_frame()
    assert table["log_prob"].tolist() == result.log_prob.tolist() and len(table.columns) == 3
