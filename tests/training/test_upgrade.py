"""Files of an earlier version: ``tests/data/run_of_2026_11_22`` is a run by the first version
that wrote checkpoints of format 2, stopped after 3 of its 6 steps."""

import json
import shutil

import pytest
import torch
from conftest import ROOT, error_of
from runs import weights_of

from ebm_app import EBM
from ebm_app.cli import train
from ebm_app.training.checkpoint import digests
from ebm_app.utils.files import write_json

OLD_RUN = ROOT / "tests" / "data" / "run_of_2026_11_22"
#: Last loss of the run that the earlier version did not stop, and the sum of |weights|
LOSS, WEIGHTS = 1.4752906101935164, 313.77606359446054
#: Log-likelihoods by the earlier version, in nats
LOG_PROB = [-206.5671910220115, -206.49712311573927, -204.2883033372744, -206.58570777383346]


@pytest.mark.process
def test_older_checkpoint_resumes_as_if_never_stopped(tmp_path):
    run = shutil.copytree(OLD_RUN, tmp_path / "run")
    by_folder = ["--resume_from_checkpoint", "latest", "--output_dir", str(run)]
    for flags, message in (
        (["--optimizer", "muon"], "optimizer was adam, now muon"),
        (["--adam_weight_decay", "0.5"], "adam_weight_decay was 0.01, now 0.5"),
    ):
        assert message in error_of(train.main, [*by_folder, *flags])
    metrics = train.main(by_folder)
    assert metrics["steps"] == 6 and metrics["loss"] == pytest.approx(LOSS, rel=1e-6)
    total = sum(weight.double().abs().sum().item() for weight in weights_of(run).values())
    assert total == pytest.approx(WEIGHTS, rel=1e-6)


@pytest.mark.process
def test_retired_objective_is_refused(tmp_path):
    run = shutil.copytree(OLD_RUN, tmp_path / "run")
    path = run / "checkpoint-3" / "state" / "trainer.json"
    trainer = json.loads(path.read_text())
    trainer["settings"]["training"]["objective"] = "ctsm_m"
    path.write_text(json.dumps(trainer))
    write_json(path.with_name("digests.json"), digests(run / "checkpoint-3"))
    resume = ["--resume_from_checkpoint", "latest", "--output_dir", str(run)]
    assert "ctsm_m with the gamma deviance" in error_of(train.main, resume)


def test_older_model_scores_as_it_did():
    ebm = EBM.from_pretrained(OLD_RUN / "checkpoint-3")
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 17, (4, 1, 8, 8), generator=generator) / 16
    noise = torch.full((1, 4, 1, 8, 8), 0.25)
    result = ebm.likelihood(images, estimator="time_integral", noise=noise)
    assert result.log_prob.tolist() == pytest.approx(LOG_PROB, rel=1e-7)
