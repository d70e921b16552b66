"""Nearest training images, and the share of copies."""

import pytest
import torch
from exact import generator

from ebm_app.evaluation.memorisation import nearest, share_of_copies


def test_neighbours_are_the_nearest_by_root_mean_square():
    others = torch.rand((40, 1, 3, 2), generator=generator())
    images = torch.rand((7, 1, 3, 2), generator=generator(1))
    distances, indices = nearest(images, others, chunk_size=2)
    all_distances = (images[:, None] - others[None]).double().square().mean((2, 3, 4)).sqrt()
    expected = all_distances.min(1)
    torch.testing.assert_close(distances, expected.values)
    assert torch.equal(indices, expected.indices)


def test_copies_show_and_fresh_draws_do_not():
    held_out = torch.rand(20_000, generator=generator(), dtype=torch.float64) + 1
    fresh = torch.rand(20_000, generator=generator(1), dtype=torch.float64) + 1
    assert share_of_copies(fresh, held_out) == pytest.approx(0.01, abs=0.003)
    fresh[:5_000] = 0
    assert share_of_copies(fresh, held_out) == pytest.approx(0.2575, abs=0.003)
