"""The step of Muon against a singular value decomposition, torch's own and that of Adam."""

import pytest
import torch
from exact import normal
from torch import nn

from ebm_app.models.config import LoopConfig, changes_of
from ebm_app.training.optimizers import OPTIMIZERS, Muon, is_matrix, orthogonalised


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
    config = LoopConfig(learning_rate=0.01, adam_weight_decay=0.1)
    runs = []
    for name in ("adam", "muon"):
        weights = [nn.Parameter(normal(shape).float()) for shape in shapes]
        optimizer = OPTIMIZERS[name].build(weights, config)
        for step in range(3):
            for weight in weights:
                weight.grad = normal(weight.shape, step).float()
            optimizer.step()
        runs.append(weights)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_it_remembers_what_it_says():
    weights = [nn.Parameter(normal((32, 16, 3, 3)).float()), nn.Parameter(normal((32,)).float())]
    optimizer = OPTIMIZERS["muon"].build(weights, LoopConfig())
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for weight in weights:
        found = {name: tuple(value.shape) for name, value in optimizer.state[weight].items()}
        assert found == OPTIMIZERS["muon"].buffers(weight)


def test_a_run_from_before_there_was_a_choice_goes_on_by_adam():
    assert changes_of({}, {"optimizer": "adam"}, frozenset()) == []
    (change,) = changes_of({}, {"optimizer": "muon"}, frozenset())
    assert change == "optimizer was adam, now muon"
