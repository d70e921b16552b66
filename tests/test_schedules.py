"""Annealing temperatures: where they begin and end, that they rise, and how they are spaced."""

import pytest
import torch
from exact import F64

from ebm_app.io.errors import UserError
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath, VPPath
from ebm_app.sampling.schedules import SCHEDULES, temperatures

PATHS = {
    "linear": (LinearVPPath(), 0.0, 0.999),
    "linear c": (LinearVPPath(c=0.3), 1e-4, 1 - 1e-5),
    "vp": (VPPath(), 0.0, 0.9999),
    "bridge": (SchrodingerBridgePath(), 1e-3, 0.999),
}


#: all but the log signal-to-noise ratio from alpha = 0, where it is infinite
CASES = [
    pytest.param(name, *ends, id=f"{name}-{key}")
    for name in SCHEDULES
    for key, ends in PATHS.items()
    if (name, key) != ("log_snr", "linear")
]


@pytest.mark.parametrize("num", [1, 2, 7, 64])
@pytest.mark.parametrize("name, path, start, end", CASES)
def test_temperatures_rise_from_start_to_end(name, path, start, end, num):
    times = temperatures(name, path, start, end, num)
    assert times.shape == (num + 1,) and times.dtype == F64
    assert times[0] == start and times[-1] == end
    assert (times.diff() > 0).all()


@pytest.mark.parametrize("path, start, end", PATHS.values(), ids=PATHS)
def test_each_schedule_is_even_in_what_it_is_named_after(path, start, end):
    clock, line = (temperatures(name, path, start, end, 9) for name in ("clock", "linear"))
    inner = slice(1, -1)  # at the ends a clock may be infinite
    gaps = path.clock(clock[inner]).diff()
    assert torch.allclose(gaps, gaps.mean().expand(7), rtol=1e-6)
    ratios = path.log_snr(temperatures("log_snr", path, max(start, 1e-3), end, 9)).diff()
    assert torch.allclose(ratios, ratios.mean().expand(9), rtol=1e-6)
    assert torch.allclose(line.diff(), torch.full((9,), (end - start) / 9, dtype=F64), rtol=1e-12)


def test_mistakes_are_the_users():
    with pytest.raises(UserError, match="unknown schedule 'cosine': choose one of clock, linear"):
        temperatures("cosine", LinearVPPath(), 0.0, 0.9, 4)
    for num in (0, -1):
        with pytest.raises(UserError, match=f"at least 1 temperature, not {num}"):
            temperatures("clock", LinearVPPath(), 0.0, 0.9, num)
    with pytest.raises(UserError, match="ratio is infinite at t = 0.0: start later"):
        temperatures("log_snr", *PATHS["linear"], 4)
