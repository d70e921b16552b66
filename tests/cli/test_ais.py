"""log Z by the command: every method, and the figures of each."""

import json
import math

import pytest
from conftest import call

from ebm_app.cli import ais

SHORT = (
    "--num_chains 4 --split train --limit 4 --repeats 1 --num_leapfrog_steps 1 "
    "--num_temperatures 2 --device cpu"
).split()


@pytest.mark.parametrize("methods", [["ais", "diffused", "raise"], ["raise"]])
def test_every_method_estimates_log_z(folder, capsys, tmp_path, methods):
    flags = [*SHORT, "--output_dir", tmp_path, "--method", *methods]
    assert call(ais, folder / "grey", *flags) == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    assert list(figures["methods"]) == methods and figures["method"] == methods[0]
    assert {"log_z", "stderr", "ess", "acceptance"} <= set(figures)
    for name, row in figures["methods"].items():
        assert f"| {name} |" in printed and row["stderr"] > 0 and 0 < row["acceptance"] <= 1
        bits = figures["unnormalised_bits_per_dim"] + row["log_z"] / (64 * math.log(2))
        assert row["bits_per_dim"] == pytest.approx(bits)
    if "ais" in methods:  # with few chains
        assert "warning: ais" in printed and figures["methods"]["ais"]["warnings"]
        assert {"forward_log_z", "reverse_log_z"} <= set(figures["methods"]["ais"])
