"""Costs of training steps."""

from dataclasses import replace

from conftest import GREY, figures_of

import speed
from ebm_app.ebm import EBM
from ebm_app.utils.files import read_json


def test_objectives_are_timed_on_the_same_network(folder, tmp_path):
    """Without the labels of the model."""
    ebm = EBM(replace(GREY, num_classes=3))
    trainers = [speed.make_trainer(ebm, 3, name) for name in speed.OBJECTIVES]
    (size,) = {sum(p.numel() for p in trainer.parameters) for trainer in trainers}
    head = speed.make_trainer(ebm, 3, "ctsm_m", stein_head=True)
    assert sum(p.numel() for p in head.parameters) > size
    flags = "--batch_size 4 --rounds 1 --device cpu --output_dir".split()
    figures = figures_of(speed, folder / "grey", *flags, tmp_path)
    assert read_json(tmp_path / "speed.json")["figures"] == figures
    rows = {row["step"]: row["of tsm"] for row in figures["table"]}
    assert set(speed.OBJECTIVES) < set(rows) and rows["tsm"] == 1


def test_parts_of_a_step_are_timed(folder, tmp_path):
    flags = "--table parts --batch_size 4 --rounds 1 --device cpu --output_dir".split()
    table = figures_of(speed, folder / "colour", *flags, tmp_path)["table"]
    parts = {row["part"]: row["of the network"] for row in table}
    assert {"prediction", "optimizer", "step"} < set(parts) and parts["network"] == 1
