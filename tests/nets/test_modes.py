"""Results in training mode equal those in evaluation mode, and leave the mode unchanged."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from conftest import GREY
from exact import generator

from ebm_app import EBM
from ebm_app.anomaly.features import extract_features
from ebm_app.training.energy import energy_config

IMAGES = torch.randint(17, (2, 1, 8, 8), generator=generator(1), dtype=torch.uint8)


def model_with_dropout(kind):
    teacher = EBM(replace(GREY, dequantisation="truncated_normal"))
    config = energy_config(teacher) if kind == "energy" else teacher.config
    ebm = EBM(replace(config, net=replace(config.net, dropout=0.5)))
    torch.manual_seed(0)
    for weight in ebm.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.05)
    return ebm


def modes(ebm):
    return [module.training for module in ebm.modules()]


def results(ebm):
    x = ebm.encode(IMAGES)
    yield ebm.log_prob(IMAGES, repeats=2)
    noise = torch.full((1, *IMAGES.shape), 0.5)
    yield ebm.log_prob(IMAGES, estimator="time_integral", noise=noise)
    yield ebm.energy(x)
    yield ebm.score(x, 0.5)
    yield ebm.time_score(x, 0.5)
    yield ebm.sample(2, num_steps=2)
    yield extract_features(ebm, IMAGES).vectors()


@pytest.mark.parametrize("kind", ["time score", "energy"])
def test_results_do_not_depend_on_the_mode(kind):
    ebm = model_with_dropout(kind)
    assert all(modes(ebm))  # as built, before load_state_dict
    x, t = torch.zeros(2, 1, 8, 8), torch.full((2,), 0.5, dtype=torch.float64)
    first, second = (ebm.model(x, t).components for _ in range(2))
    assert not torch.equal(first, second)  # training has dropout
    before = torch.random.get_rng_state()
    trained = [*results(ebm)]
    assert all(modes(ebm)) and torch.equal(before, torch.random.get_rng_state())
    ebm.eval()
    partly = ebm.model.net.train() and [*results(ebm)]
    ebm.eval()
    for found, same, expected in zip(trained, partly, results(ebm), strict=True):
        assert torch.equal(found, expected) and torch.equal(same, expected)
    assert not any(modes(ebm))


def test_threads_share_a_model_in_training_mode():
    ebm = model_with_dropout("time score")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: ebm.log_prob(IMAGES, repeats=1), range(12)))
    assert all(modes(ebm))
    expected = ebm.eval().log_prob(IMAGES, repeats=1)
    assert all(torch.equal(values, expected) for values in found)
