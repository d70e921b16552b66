"""Ladders of times: where they begin and end, that they rise, and how they are spaced."""

import pytest
import torch
from exact import F64

from ebm_app.errors import UserError
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.sampling.schedules import SCHEDULES, ladder

PATHS = {
    "linear": (LinearVPPath(), 0.0, 0.999),
    "linear c": (LinearVPPath(c=0.3), 1e-4, 1 - 1e-5),
    "vp": (VPPath(), 0.0, 0.9999),
    "bridge": (SchrodingerBridgePath(), 1e-3, 0.999),
}


@pytest.mark.parametrize("num_levels", [1, 2, 7, 64])
@pytest.mark.parametrize("path, start, end", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_ladder_rises_from_its_start_to_its_end(name, path, start, end, num_levels):
    times = ladder(name, path, start, end, num_levels)
    assert times.shape == (num_levels + 1,) and times.dtype == F64
    assert times[0] == start and times[-1] == end
    assert (times.diff() > 0).all()


@pytest.mark.parametrize("path, start, end", PATHS.values(), ids=PATHS)
def test_each_schedule_is_even_in_what_it_is_named_after(path, start, end):
    """The clock; t itself; and logit of the share of the way, scaled to the logistic's ends."""
    clock, line, sigmoid = (
        ladder(name, path, start, end, 9) for name in ("clock", "linear", "sigmoid")
    )
    inner = slice(1, -1)  # at the ends a clock may be infinite
    gaps = path.clock(clock[inner]).diff()
    assert torch.allclose(gaps, gaps.mean().expand(7), rtol=1e-6)
    assert torch.allclose(line.diff(), torch.full((9,), (end - start) / 9, dtype=F64), rtol=1e-12)
    low, high = torch.sigmoid(torch.tensor([-4.0, 4.0], dtype=F64))
    steps = torch.logit(low + (sigmoid - start) / (end - start) * (high - low)).diff()
    assert torch.allclose(steps, torch.full((9,), 8 / 9, dtype=F64), rtol=1e-6)


@pytest.mark.parametrize("path, start, end", PATHS.values(), ids=PATHS)
def test_a_sigmoid_ladder_is_symmetric_and_dense_at_both_ends(path, start, end):
    times = ladder("sigmoid", path, start, end, 10)
    assert torch.allclose(times + times.flip(0), torch.full((11,), start + end, dtype=F64))
    gaps = times.diff()
    assert (gaps[:5].diff() > 0).all() and gaps[4] > 4 * gaps[0]


def test_mistakes_are_the_users():
    with pytest.raises(UserError, match="unknown schedule 'cosine': choose .*linear, sigmoid"):
        ladder("cosine", LinearVPPath(), 0.0, 0.9, 4)
    for num_levels in (0, -1):
        with pytest.raises(UserError, match=f"at least 1 level, not {num_levels}"):
            ladder("clock", LinearVPPath(), 0.0, 0.9, num_levels)
