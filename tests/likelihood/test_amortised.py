"""The amortised likelihood: its value and error, and what it refuses."""

from dataclasses import replace

import pytest
import torch
from conftest import error_of

from ebm_app import EBM
from ebm_app.config import UNetConfig
from ebm_app.data.images import load_images
from ebm_app.likelihood.amortised import (
    Amortised,
    AmortisedConfig,
    AmortisedLikelihood,
    ErrorTable,
)
from ebm_app.pretrained import fingerprint
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
