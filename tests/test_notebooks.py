"""The notebooks in docs/ run, and their results support what they say."""

import json

import pytest
from conftest import ROOT

pytestmark = pytest.mark.process

FOLDER = ROOT / "docs" / "notebooks"


def run(name):
    names = {}
    for cell in json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")  # notebooks are stored without outputs
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), name, "exec"), names)
    return names


def test_mutual_information_notebook():
    names = run("mutual_information.ipynb")
    estimates = names["estimates"]
    assert estimates["bmi"].interval[0] > 0 and estimates["s5"].interval[0] > 0
    assert estimates["sex"].value < estimates["bmi"].value / 3
    assert names["both"].value > estimates["bmi"].value
    assert names["patients"].nats.mean() > 0.1


def test_unusual_images_notebook(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    names = run("unusual_images.ipynb")
    assert names["alarms"][:10].all() and names["alarms"][10:].mean() < 0.12
    assert names["flagged"][:10].all() and names["flagged"][10:].sum() <= 4
    assert names["maps"].shape == (10, 8, 8)
