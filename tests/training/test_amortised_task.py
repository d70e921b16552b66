"""Distillation into an amortised likelihood: targets, loss and calibration."""

import math
from functools import partial

import pytest
import torch
from conftest import GREY, error_of

from ebm_app import EBM
from ebm_app.cli import distill
from ebm_app.data.images import load_images
from ebm_app.training import amortised_task
from ebm_app.training.amortised_task import Regression, Targets, build_network, make_targets
from ebm_app.utils.files import read_json

DATA = load_images("digits")


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr(amortised_task, "SHARD", 8)
    monkeypatch.setattr(distill, "NUM_HELD_OUT", 16)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(0)
    EBM(GREY).save_pretrained(folder)
    return folder


@pytest.fixture
def make(teacher, tmp_path):
    settings = {"folder": tmp_path, "num_nodes": 3, "num_draws": 1}
    return partial(make_targets, EBM.from_pretrained(teacher), [DATA], **settings)


def test_targets_are_terms_of_the_bound(teacher, make):
    """Of ordinary and of unusual images in turn."""
    targets, held_out = make("train", 16), make("validation", 8)
    assert targets.is_ordinary.tolist() == [True, False] * 8
    parts = targets.levels, held_out.levels
    is_training, is_leak = ((x[:, None] == DATA.train).flatten(2).all(2).any(1) for x in parts)
    assert is_training[targets.is_ordinary].all() and not is_training[~targets.is_ordinary].all()
    assert not is_leak[held_out.is_ordinary].any()
    ebm = EBM.from_pretrained(teacher)
    bound = ebm.likelihood(targets.levels[:8], seed=1, num_nodes=3, num_draws=1)
    torch.testing.assert_close(targets.terms[:8], bound.components.float())


def test_targets_are_kept_and_extended(make, tmp_path):
    few = make("train", 8)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    more = make("train", 24)
    assert torch.equal(more.terms[:8], few.terms) and len(more.terms) == 24
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    assert len(make("train", 80, deadline=0.0).terms) == 24
    assert "other settings" in error_of(make, "train", 8, seed=1)


def test_other_data_sets_are_trained_on(teacher, tmp_path):
    other = DATA.__class__("other", 17, *[torch.full((4, 1, 8, 8), 3, dtype=torch.uint8)] * 3)
    sources, settings = [DATA, other], {"num_nodes": 3, "num_draws": 1}
    targets = make_targets(EBM.from_pretrained(teacher), sources, "train", 8, tmp_path, **settings)
    assert (targets.levels[3::4] == 3).all() and not targets.is_ordinary[3::4].any()


def test_loss_is_relative_to_the_bits_of_unusual_images(teacher, make):
    ordinary = make("train", 8)
    network = build_network(EBM.from_pretrained(teacher), ordinary)
    torch.nn.init.zeros_(network.head.weight)
    torch.nn.init.zeros_(network.head.bias)
    levels, std = ordinary.levels[:1], network.config.std
    terms = torch.full(levels.shape, network.config.mean)
    excess = torch.linspace(-1, 1, 64).view(levels.shape) + 0.1
    loss, zero = Regression(network)(levels, terms + excess), Regression(network)(levels, terms)
    bits = max(1.0, -network.config.mean / math.log(2))
    expected = (excess.square().sum() + excess.sum() ** 2) / (64 * std**2) / bits**2
    assert zero.item() == pytest.approx(0, abs=1e-6)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_network_starts_from_the_weights_of_its_teacher(teacher, make):
    ebm = EBM.from_pretrained(teacher)
    network = build_network(ebm, make("train", 8))
    own, theirs = network.net.unet.state_dict(), ebm.model.net.unet.state_dict()
    different = {name for name, weight in own.items() if not torch.equal(weight, theirs[name])}
    assert different == {"conv_in.weight", "conv_out.weight", "conv_out.bias"}


class OffByDistance:
    """A network whose prediction is off by the distance of the features, for bounds of zero."""

    def predict(self, levels):
        values = levels.double().flatten(1).mean(1)
        return levels.double() * 0 + values[:, None, None, None] / 64, values[:, None]

    def distance(self, summaries):
        return summaries[:, 0]


def test_calibrated_error_follows_the_distance():
    levels = torch.arange(1, 101, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    terms = torch.zeros(levels.shape)
    is_ordinary = torch.arange(100) < 3
    table = amortised_task.calibrate(OffByDistance(), Targets(levels, terms, is_ordinary))
    assert (table.offset, table.spread) == pytest.approx((2.0, 1.0))
    errors = table.error_at(torch.tensor([30.0, 60.0], dtype=torch.float64))
    assert errors.tolist() == pytest.approx([28, 58], rel=0.1)


def test_command_trains_resumes_and_reports(teacher, tmp_path):
    folder = tmp_path / "run"
    words = [str(teacher), *"--target likelihood --num_images 16 --max_train_steps 3".split()]
    words += ["--train_batch_size", "8", "--output_dir", str(folder)]
    figures = distill.main(words)
    record = read_json(folder / "run.json")["figures"]
    assert record["spread_bits"] == figures["spread_bits"] > 0
    settings = {"estimator": "amortised", "folder": str(folder)}
    result = EBM.from_pretrained(teacher).likelihood(DATA.test[:3], **settings)
    assert result.log_prob.isfinite().all() and (result.error > 0).all()
    assert "already holds a run" in error_of(distill.main, words)
    again = distill.main([*words, "--resume_from_checkpoint", "latest"])
    assert again["offset_bits"] == pytest.approx(figures["offset_bits"])
