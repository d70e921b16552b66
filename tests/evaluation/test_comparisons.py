"""Costs of training steps, and log Z by temperatures."""

import json
from dataclasses import replace

from conftest import GREY, call

from ebm_app.ebm import EBM
from studies import log_z, speed


def test_objectives_are_timed_on_the_same_network(folder, tmp_path, capsys):
    """Without the labels of the model."""
    ebm = EBM(replace(GREY, num_classes=3))
    trainers = [speed.make_trainer(ebm, 3, name) for name in speed.OBJECTIVES]
    (size,) = {sum(p.numel() for p in trainer.parameters) for trainer in trainers}
    head = speed.make_trainer(ebm, 3, "ctsm_m", stein_head=True)
    assert sum(p.numel() for p in head.parameters) > size
    flags = "--batch_size 4 --rounds 1 --device cpu --output_dir".split()
    assert call(speed, folder / "grey", *flags, tmp_path) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((tmp_path / "speed.json").read_text())["figures"] == figures
    rows = {row["step"]: row["of tsm"] for row in figures["table"]}
    assert set(speed.OBJECTIVES) < set(rows) and rows["tsm"] == 1


def test_log_z_is_tabulated_by_temperatures(tmp_path, capsys):
    sides = ("", "forward_", "reverse_")
    names = [side + name for side in sides for name in ("log_z", "stderr")]
    complete = dict.fromkeys(names, 1.5)
    for k, figures in {10: complete, 20: complete, 30: None}.items():
        (tmp_path / str(k)).mkdir()
        record = {"settings": {"num_temperatures": k}, "figures": figures}
        (tmp_path / str(k) / "ais.json").write_text(json.dumps(record))
    out = ["--output_dir", tmp_path / "out"]
    assert call(log_z, tmp_path / "10", tmp_path / "20", *out) == 0
    assert "| 20 | 1.5 |" in capsys.readouterr().out
    assert (tmp_path / "out" / "log_z.png").stat().st_size > 1000
    assert call(log_z, tmp_path / "10", tmp_path / "30", *out) == 2
    assert "interrupted" in capsys.readouterr().err
