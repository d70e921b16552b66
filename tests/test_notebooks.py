"""The notebooks of the docs run from top to bottom, and what they say is so."""

import json

import numpy as np
import pytest
from conftest import ROOT

pytestmark = pytest.mark.process

FOLDER = ROOT / "docs" / "notebooks"


def run(name, capsys):
    """The names that a notebook defines, and what it prints."""
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), name, "exec"), names)
    return names, capsys.readouterr().out


def test_mutual_information_of_a_table(capsys):
    names, printed = run("mutual_information.ipynb", capsys)
    found = names["found"]
    assert found["sex"].discrete == ["'sex'"] and not found["bmi"].discrete
    assert found["bmi"].interval[0] > 0 and found["s5"].interval[0] > 0
    assert found["sex"].value < found["bmi"].value / 3
    assert names["both"].value > found["bmi"].value and "nats" in printed
    assert names["beyond"].interval[0] > 0 and names["patients"].nats.mean() > 0.1


def test_covariate_shift_on_digits(capsys):
    names, printed = run("covariate_shift.ipynb", capsys)
    means, ratio = names["means"], names["ratio"]
    away = means["old, weighted"] - means["new, if somebody read them"]
    assert abs(away) < (means["old"] - means["new, if somebody read them"]) / 2
    assert ratio.p_value < 1e-6 and "KL divergence" in printed
    divergence = names["shares"][1] @ names["truth"]
    assert 0.2 < ratio.kl_bound < divergence + 2 * ratio.kl_stderr
    assert np.corrcoef(names["value"], names["truth"][names["digit"]])[0, 1] > 0.7
    assert abs(names["kept"]["weighted"] - 0.9) < 0.05 and ratio.drifted
    assert names["kept"]["weighted"] > names["kept"]["nine in ten old digits"]


def test_odd_images(capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    names, printed = run("odd_images.ipynb", capsys)
    assert names["alarms"][:10].all() and names["alarms"][10:].mean() < 0.12
    assert names["found"][:10].all() and names["found"][10:].sum() <= 4
    assert names["maps"].shape == (10, 8, 8) and "10 of 10 odd scans" in printed


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook_is_tested_and_holds_no_output(path):
    assert path.name in {"covariate_shift.ipynb", "mutual_information.ipynb", "odd_images.ipynb"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
