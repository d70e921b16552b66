"""The study of the error bounds, end to end with few draws."""

import json

import pytest
from conftest import call

from ebm_app.io.records import read_json


@pytest.mark.process
def test_the_study_leaves_tables_record_and_plots(script, capsys, tmp_path, monkeypatch):
    module = script("evaluate/bounds.py")
    for table, key in (("PATHS", "linear_vp"), ("WEIGHTINGS", "uniform")):
        monkeypatch.setattr(module, table, {key: getattr(module, table)[key]})
    monkeypatch.setattr(module, "QUICK", module.Budget(20, (1, 4), (300, 400), 3))
    assert call(module, "--quick", "--device", "cpu", "--output_dir", tmp_path) == 0
    table = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    assert read_json(tmp_path / "bounds.json")["figures"]["table"] == table
    rows = table["theorem4"]
    assert len(rows) == 3 * 2 * 2  # problems, errors, numbers of steps
    for row in rows:
        assert row["kl"] ** 2 <= row["mean_square"] * (1 + 1e-9) <= row["bound"] * (1 + 2e-9)
    ctsm, _, ctsm_v, _ = rows = table["proposition5"]  # objectives, sizes
    assert ctsm_v["e"] < ctsm["e"] and all(row["failed"] <= 1 for row in rows)
    for name in ("theorem4", "proposition5"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
