"""The notebooks in docs/ run, and their results support what they say."""

import json

import numpy as np
import pytest
from conftest import ROOT

pytestmark = pytest.mark.process

FOLDER = ROOT / "docs" / "notebooks"


def run(name):
    """Run the cells of a notebook and return its variables."""
    names = {}
    for cell in json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")  # notebooks are stored without outputs
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), name, "exec"), names)
    return names


def test_mutual_information_notebook():
    names = run("mutual_information.ipynb")
    found = names["found"]
    assert found["sex"].discrete == ["'sex'"] and not found["bmi"].discrete
    assert found["bmi"].interval[0] > 0 and found["s5"].interval[0] > 0
    assert found["sex"].value < found["bmi"].value / 3
    assert names["both"].value > found["bmi"].value
    assert names["beyond"].interval[0] > 0 and names["patients"].nats.mean() > 0.1


def test_covariate_shift_notebook():
    names = run("covariate_shift.ipynb")
    means, ratio = names["means"], names["ratio"]
    away = means["old, weighted"] - means["new, if somebody read them"]
    assert abs(away) < (means["old"] - means["new, if somebody read them"]) / 2
    divergence = names["shares"][1] @ names["truth"]
    assert ratio.p_value < 1e-6
    assert 0.2 < ratio.kl_bound < divergence + 2 * ratio.kl_stderr
    assert np.corrcoef(names["value"], names["truth"][names["digit"]])[0, 1] > 0.7
    assert abs(names["kept"]["weighted"] - 0.9) < 0.05 and ratio.drifted
    assert names["kept"]["weighted"] > names["kept"]["nine in ten old digits"]


def test_unusual_images_notebook(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    names = run("unusual_images.ipynb")
    assert names["alarms"][:10].all() and names["alarms"][10:].mean() < 0.12
    assert names["flagged"][:10].all() and names["flagged"][10:].sum() <= 4
    assert names["maps"].shape == (10, 8, 8)
