"""The step of Muon against a singular value decomposition, torch's own and that of Adam."""

from dataclasses import replace

import pytest
import torch
from exact import normal
from torch import nn

from ebm_app.models.config import LoopConfig, changes_of
from ebm_app.training.optimizers import (
    OPEN_ENDED,
    OPTIMIZERS,
    Muon,
    is_matrix,
    learning_rate,
    orthogonalised,
)


@pytest.mark.parametrize("shape", [(64, 576), (200, 20), (32, 32)])
def test_the_singular_vectors_stay_and_the_values_become_about_one(shape):
    matrix = normal(shape)
    found = orthogonalised(matrix)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inner = left.mT @ found @ right.mT  # diagonal
    values = inner.diagonal()
    assert (inner - values.diag()).abs().max() < 1e-9
    assert values.min() > 0.6 and values.max() < 1.3


def test_a_matrix_steps_as_by_the_muon_of_torch():
    """Which computes in bfloat16."""
    ours, theirs = (nn.Parameter(normal((64, 48)).float()) for _ in range(2))
    before = ours.detach().clone()
    own = Muon([ours], lr=0.01, weight_decay=0.1)
    other = torch.optim.Muon(
        [theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(3):
        for weight, optimizer in ((ours, own), (theirs, other)):
            weight.grad = normal((64, 48), step).float()
            optimizer.step()
    change = (ours - before).norm()
    assert (ours - theirs).norm() < 0.02 * change


def test_an_entry_of_a_convolution_steps_by_a_fifth_of_the_rate():
    weight = nn.Parameter(normal((64, 32, 3, 3)).float())
    before = weight.detach().clone()
    optimizer = Muon([weight], lr=0.01, weight_decay=0.0)
    weight.grad = normal(weight.shape, 1).float()
    optimizer.step()
    assert weight.grad is None
    change = (weight - before).square().mean().sqrt().item()
    assert change == pytest.approx(0.002, rel=0.25)


def test_other_weights_step_as_by_adam():
    shapes = [(32,), (2, 64, 3, 3), (15, 100)]
    assert not any(is_matrix(torch.zeros(shape)) for shape in shapes)
    runs = []
    for name in ("adam", "muon"):
        weights = [nn.Parameter(normal(shape).float()) for shape in shapes]
        optimizer = OPTIMIZERS[name](weights, lr=0.01, weight_decay=0.1)
        for step in range(3):
            for weight in weights:
                weight.grad = normal(weight.shape, step).float()
            optimizer.step()
        runs.append(weights)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_run_from_before_there_was_a_choice_goes_on_by_adam():
    assert changes_of({}, {"optimizer": "adam"}, frozenset()) == []
    (change,) = changes_of({}, {"optimizer": "muon"}, frozenset())
    assert change == "optimizer was adam, now muon"


def test_an_open_ended_rate_rises_stays_and_falls():
    config = LoopConfig(
        learning_rate=1.0,
        lr_scheduler=OPEN_ENDED,
        lr_warmup_steps=4,
        lr_decay_steps=5,
        max_train_steps=20,
    )
    rates = [learning_rate(config, step) for step in range(21)]
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(rates[4:16]) == {1.0}
    assert rates[15:] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    assert learning_rate(replace(config, lr_warmup_steps=0, lr_decay_steps=0), 0) == 1.0
