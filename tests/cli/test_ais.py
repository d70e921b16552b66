"""log Z by the command: every method, and the figures of each."""

import json
import math

import pytest
import torch
from conftest import NET, call

from ebm_app.cli import ais
from ebm_app.config import EBMConfig
from ebm_app.ebm import EBM

METHODS = {"diffused", "ais", "raise"}
SHORT = (
    "--num_chains 4 --num_nodes 4 --split train --limit 4 --repeats 1 --num_leapfrog_steps 1 "
    "--num_temperatures 2 --device cpu"
).split()


@pytest.fixture(scope="module")
def small(tmp_path_factory, image_folder):
    """A model of 2 x 2 images with random weights."""
    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(0)
    config = EBMConfig(f"folder:{image_folder}", (1, 2, 2), 256, eps=1e-4, net=NET, num_nodes=8)
    ebm = EBM(config)
    with torch.no_grad():
        for weight in ebm.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    ebm.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("choice", "methods"), [("all", METHODS), ("both", {"ais", "raise"}), ("ais", {"ais"})]
)
def test_every_method_estimates_log_z(small, capsys, tmp_path, choice, methods):
    assert call(ais, small, *SHORT, "--output_dir", tmp_path, "--method", choice) == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    assert set(figures["methods"]) == methods and figures["method"] in methods
    assert {"log_z", "stderr", "ess", "acceptance"} <= set(figures)
    for name, row in figures["methods"].items():
        assert f"| {name} |" in printed and row["stderr"] > 0 and 0 < row["acceptance"] <= 1
        bits = figures["unnormalised_bits_per_dim"] + row["log_z"] / (4 * math.log(2))
        assert row["bits_per_dim"] == pytest.approx(bits)
    assert "warning: ais" in printed and figures["methods"]["ais"]["warnings"]  # few chains
    assert {"forward_log_z", "reverse_log_z"} <= set(figures["methods"]["ais"])
