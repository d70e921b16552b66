"""The amortised likelihood: its value and error, what it refuses, and its training."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import GREY, error_of

from ebm_app import EBM
from ebm_app.cli import distill
from ebm_app.config import EBMConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.likelihood.amortised import (
    Amortised,
    AmortisedConfig,
    AmortisedLikelihood,
    ErrorTable,
)
from ebm_app.pretrained import fingerprint
from ebm_app.training import amortised_task
from ebm_app.training.amortised_task import Regression, Targets, build_network, make_targets
from ebm_app.utils.files import read_json
from ebm_app.utils.random import initial_weights

TABLE = ErrorTable(offset=3.0, spread=1.0, distances=(1.0, 2.0), errors=(0.5, 4.0))
LEVELS = torch.randint(17, (5, 1, 8, 8), dtype=torch.uint8)


def network(teacher="", **settings):
    form = ("digits", (1, 8, 8), 17, teacher, -1.0, 2.0, UNetConfig((8, 8), norm_num_groups=4))
    with initial_weights(0):
        model = AmortisedLikelihood(AmortisedConfig(*form, **settings))
    torch.nn.init.normal_(model.net.last_layer.weight, std=0.1)
    return model.eval()


@pytest.fixture(scope="module")
def ebm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    EBM.from_pretrained("digits").save_pretrained(folder)
    loaded = EBM.from_pretrained(folder)
    network(fingerprint(loaded.model), calibration=TABLE).save_pretrained(folder / "amortised")
    return loaded


@torch.no_grad()
def test_estimate_subtracts_the_offset_and_sums_its_terms():
    errors = TABLE.error_at(torch.tensor([0.0, 1.0, 1.5, 2.0, 6.0], dtype=torch.float64))
    assert errors.tolist() == [0.5, 0.5, 2.25, 4.0, 12.0]
    model = network(calibration=TABLE)
    result, (terms, summary) = model.estimate(LEVELS), model(LEVELS)
    torch.testing.assert_close(result.value, terms.double().flatten(1).sum(1) - 3)
    torch.testing.assert_close(result.components.flatten(1).sum(1), result.value)
    torch.testing.assert_close(result.error, TABLE.error_at(model.distance(summary).double()))
    assert result.components.shape == LEVELS.shape and result.nfe == 1


def test_estimator_uses_the_network_in_the_folder_of_the_model(ebm):
    result = ebm.likelihood(LEVELS, estimator="amortised")
    expected = AmortisedLikelihood.from_pretrained(ebm.density.folder / "amortised")
    torch.testing.assert_close(result.log_prob, expected.estimate(LEVELS).value)


def test_models_without_a_fitting_network_are_refused(ebm, tmp_path):
    assert "not calibrated" in error_of(network().estimate, LEVELS)
    options = {"estimator": "amortised"}
    assert "Leave labels out" in error_of(ebm.likelihood, LEVELS, labels=3, **options)
    ebm.save_pretrained(tmp_path)
    without, changed = EBM.from_pretrained(tmp_path), EBM(replace(ebm.config))
    changed.density.folder = ebm.density.folder
    assert "train/distill.py" in error_of(without.likelihood, LEVELS, **options)
    assert "different weights" in error_of(changed.likelihood, LEVELS, **options)
    supported = [Amortised.supports(each.density) for each in (ebm, without, changed)]
    assert supported == [True, False, False]


def test_bundled_network_is_within_its_error_of_the_bound():
    ebm, digits = EBM.from_pretrained("digits"), load_images("digits").validation[:40]
    predicted = ebm.likelihood(digits, estimator="amortised")
    difference = predicted.log_prob - ebm.log_prob(digits)
    assert difference.square().mean().sqrt() < 1.2 * predicted.error.mean()
    noise = torch.randint(17, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator())
    errors = ebm.likelihood(noise, estimator="amortised").error
    assert errors.mean() > 1.5 * predicted.error.mean()


def test_study_compares_amortised_and_elbo_by_kind(script, tmp_path):
    main = script("evaluate/amortised.py").main
    flags = ["--limit", "6", "--num_unusual", "3", "--num_draws", "1", "--seed", "4"]
    rows = main(["digits", *flags, "--output_dir", str(tmp_path)])["table"]
    table = {row["images"]: row for row in rows}
    assert {"test images *", "mirrored", "blank *", "thick strokes"} < set(table)
    levels, model = load_images("digits").test[:6], EBM.from_pretrained("digits")
    bits = [
        model.likelihood(levels, estimator=name, **settings).bits_per_dim
        for name, settings in (("amortised", {}), ("elbo", {"num_draws": 1, "seed": 4}))
    ]
    row = table["test images *"]
    assert row["difference"] == pytest.approx((bits[0] - bits[1]).mean().item(), abs=1e-6)
    assert row["spread"] == pytest.approx((bits[0] - bits[1]).std().item(), abs=1e-6)
    assert table["blank *"]["stated_error"] > row["stated_error"]


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


def random_targets(*shape):
    levels = torch.zeros(2, *shape, dtype=torch.uint8)
    return Targets(levels, torch.randn(levels.shape), torch.ones(2, dtype=torch.bool))


def test_network_starts_from_the_weights_of_its_teacher(teacher, make):
    ebm = EBM.from_pretrained(teacher)
    network = build_network(ebm, make("train", 8))
    own, theirs = network.net.unet.state_dict(), ebm.model.net.unet.state_dict()
    different = {name for name, weight in own.items() if not torch.equal(weight, theirs[name])}
    assert different == {"conv_in.weight", "conv_out.weight", "conv_out.bias"}


def test_network_starts_from_the_weights_of_a_latent_teacher():
    ebm = EBM.from_pretrained("mnist-latent")
    own = build_network(ebm, random_targets(1, 28, 28)).net.unet.state_dict()
    theirs = ebm.model.net.net.unet.state_dict()
    assert torch.equal(own["conv_norm_out.weight"], theirs["conv_norm_out.weight"])


def test_network_of_a_large_teacher_has_less_than_3_mb(tmp_path):
    net = UNetConfig((96, 32), layers_per_block=2)
    teacher = EBM(EBMConfig("colours", (3, 32, 32), 256, net=net, input_frequencies=(2.0,)))
    targets = random_targets(3, 32, 32)
    network = build_network(teacher, targets)
    assert network.config.input_frequencies == ()
    assert network.config.mean == pytest.approx(targets.terms.mean().item())
    network.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 3e6


def test_inputs_are_values_and_compressed_differences():
    model, inputs = network(), []
    model.net.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    levels = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    levels[..., 5] = 16  # a column
    model(levels)
    x, *changes = inputs[0][0]
    assert x[0, 4] == pytest.approx(1 / 17 - 1) and x[0, 5] == pytest.approx(33 / 17 - 1)
    expected = torch.zeros(4, 8, 8)  # vertical and horizontal differences, at two scales
    for index, scale in ((1, 2), (3, 16)):
        expected[index, :, 5] = math.asinh(16 / scale) / 2
        expected[index, :, 6] = -math.asinh(16 / scale) / 2
    torch.testing.assert_close(torch.stack(changes), expected)


class OffByDistance:
    """A network whose prediction is off by the distance of the features, for bounds of zero."""

    def predict(self, levels):
        values = levels.double().flatten(1).mean(1)
        return levels.double() * 0 + values[:, None, None, None] / 64, values[:, None]

    def distance(self, summaries):
        return summaries[:, 0]


def test_distance_has_mean_square_1_over_training_images():
    model, generator = network(), torch.Generator().manual_seed(0)
    size = len(model.centre)
    scale = torch.linspace(1, 3, size)
    summaries = 5 + scale * torch.randn(4 * size, size, generator=generator)
    model.set_training_features(summaries)
    assert model.distance(summaries).square().mean().item() == pytest.approx(1, rel=0.01)


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
    other = [*words, "--init_from", str(teacher)]
    assert "--target energy, got likelihood" in error_of(distill.main, other)
    figures = distill.main(words)
    record = read_json(folder / "run.json")["figures"]
    assert record["spread_bits"] == figures["spread_bits"] > 0
    settings = {"estimator": "amortised", "folder": str(folder)}
    result = EBM.from_pretrained(teacher).likelihood(DATA.test[:3], **settings)
    assert result.log_prob.isfinite().all() and (result.error > 0).all()
    assert "already holds a run" in error_of(distill.main, words)
    again = distill.main([*words, "--resume_from_checkpoint", "latest"])
    assert again["offset_bits"] == pytest.approx(figures["offset_bits"])
