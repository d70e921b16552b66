"""The comparison of samplers: its table, and copies of training images."""

import json

import torch
from conftest import call

from ebm_app.cli import samplers
from ebm_app.data.images import load_images

FLOW = "pf_ode num_steps=1"
HMC = "annealed_hmc num_temperatures=1 steps_per_temperature=1 num_leapfrog_steps=1 final_steps=0"
FLAGS = "--num_images 5 --batch_size 3 --classifier_steps 5 --device cpu".split()


def test_every_run_is_a_row_of_the_table(capsys, tmp_path, folder):
    runs = [word for run in (FLOW, HMC, "pf_ode  num_steps=1") for word in ("--run", run)]
    assert call(samplers, folder / "grey", "--output_dir", tmp_path, *FLAGS, *runs) == 0
    *table, last = capsys.readouterr().out.strip().splitlines()
    figures = json.loads(last)
    assert 0 <= figures["classifier_accuracy"] <= 1
    flow, hmc = figures["table"]
    assert (flow["run"], flow["nfe"], hmc["run"]) == (FLOW, 3, HMC)
    for row in (flow, hmc, figures["floor"][0]):
        assert row["frechet"] > 0 and 0 <= row["class_balance"] <= 1
    assert any(line.startswith(f"| {FLOW} | 3 |") for line in table)
    assert any(line.startswith("| 5 held-out images |") for line in table)
    record = json.loads((tmp_path / "samplers.json").read_text())
    assert record["figures"] == figures and record["settings"]["num_images"] == 5


def test_training_images_are_copies_and_test_images_are_not():
    data = load_images("digits")
    args = samplers.Arguments(model="digits", num_images=60, classifier_steps=5, device="cpu")
    measure = samplers.Judge(data, torch.device("cpu"), args).measure
    seen, unseen = (measure(data.display(part[:60]), None) for part in (data.train, data.test))
    assert seen["copies"] == seen["identical"] > 0.5  # a third is held out from the neighbours
    assert unseen["copies"] < 0.1 and unseen["identical"] == 0
