"""log Z from weights of a known distribution: log w ~ N(m, s^2) forward, hence N(m + s^2, s^2)
in reverse, and log Z = m + s^2 / 2 exactly."""

import math

import pytest
import torch
from exact import F64, normal

from ebm_app.evaluation.log_z.estimates import bennett, from_forward, from_reverse

MEAN = -3.0


def forward(num, spread, seed=0):
    return MEAN + spread * normal((num,), seed)


def reverse(num, spread, seed=1):
    return MEAN + spread**2 + spread * normal((num,), seed)


def truth(spread):
    return MEAN + spread**2 / 2


def both(num, spread, seed=0):
    return bennett(forward(num, spread, 2 * seed), reverse(num, spread, 2 * seed + 1))


ESTIMATES = {
    "forward": lambda num, spread, seed: from_forward(forward(num, spread, seed)),
    "reverse": lambda num, spread, seed: from_reverse(reverse(num, spread, seed)),
    "bennett": both,
}


@pytest.mark.parametrize("spread", [0.1, 0.7, 1.2])
@pytest.mark.parametrize("name", ESTIMATES)
def test_log_normal_weights_give_their_log_z(name, spread):
    num = 150 if name == "bennett" else 4000
    found = ESTIMATES[name](num, spread, 3)
    assert abs(found.log_z - truth(spread)) < 3.5 * found.stderr
    assert 0 < found.stderr < 0.15 and found.num == num and not found.warnings
    at = MEAN + spread**2 * (name == "reverse")
    assert abs(found.mean_log_weight - at) < 5 * spread / math.sqrt(num)
    assert found.sd_log_weight == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize("name", ["forward", "reverse"])
def test_the_standard_error_of_many_weights_is_that_of_the_delta_method(name):
    """sqrt((e^(s^2) - 1) / N) by the delta method, of which e^(-s^2) N weights are effective."""
    num, spread = 40_000, 0.8
    found = ESTIMATES[name](num, spread, 5)
    assert found.stderr == pytest.approx(math.sqrt(math.expm1(spread**2) / num), rel=0.1)
    assert found.ess == pytest.approx(num * math.exp(-(spread**2)), rel=0.1)


@pytest.mark.parametrize("name, spread", [("forward", 0.3), ("reverse", 0.8), ("bennett", 0.8)])
def test_two_standard_errors_cover_log_z_about_as_often_as_they_should(name, spread):
    """And their mean square is that of the error, within what so many repeats can tell."""
    repeats, num = (60, 40) if name == "bennett" else (300, 200)
    found = [ESTIMATES[name](num, spread, 10 + seed) for seed in range(repeats)]
    errors = torch.tensor([f.log_z - truth(spread) for f in found], dtype=F64)
    stated = torch.tensor([f.stderr for f in found], dtype=F64)
    assert 0.88 <= (errors.abs() < 2 * stated).double().mean() <= 0.995
    assert 0.75 < (errors.square().mean() / stated.square().mean()).sqrt() < 1.25


@pytest.mark.parametrize("spread", [0.5, 1.0, 1.5])
def test_both_sides_together_have_a_smaller_error_than_either(spread):
    u, v = forward(150, spread, 20), reverse(150, spread, 21)
    joined = bennett(u, v)
    assert joined.stderr < min(from_forward(u).stderr, from_reverse(v).stderr)
    assert abs(joined.log_z - truth(spread)) < 3.5 * joined.stderr


def test_bennett_solves_its_equation():
    u, v = forward(30, 1.0), reverse(50, 1.0)
    c, ratio = bennett(u, v).log_z, 50 / 30
    left = (torch.exp(u - c) / (1 + ratio * torch.exp(u - c))).mean()
    right = (1 / (1 + ratio * torch.exp(v - c))).mean()
    assert left.item() == pytest.approx(right.item(), rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, -5000.0, 5000.0])
def test_equal_weights_are_exact_and_nothing_overflows(shift):
    u = torch.full((20,), 1.5 + shift, dtype=F64)
    for found in (from_forward(u), from_reverse(u), bennett(u, u[:7])):
        assert found.log_z == pytest.approx(1.5 + shift, abs=1e-9)
        assert found.stderr < 1e-9 and not found.warnings
    assert from_forward(u).ess == pytest.approx(20)
    wide = forward(50, 1.0)
    for call in (from_forward, from_reverse, lambda w: bennett(w, w + 1)):
        one, other = call(wide), call(wide + shift)
        assert other.log_z - shift == pytest.approx(one.log_z, abs=1e-8)
        assert other.stderr == pytest.approx(one.stderr, rel=1e-6)


@pytest.mark.parametrize("num", [16, 96, 400])
@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0, 3.0, 4.0])
def test_two_standard_errors_cover_log_z_however_wide_the_weights(num, spread):
    """1,000 estimates each: within what so many can tell, 90 percent at least, and no warning."""
    found = [from_forward(forward(num, spread, 50 + seed)) for seed in range(1000)]
    covered = [abs(f.log_z - truth(spread)) < 2 * f.stderr for f in found]
    assert sum(covered) / 1000 > 0.90 - 2.5 * math.sqrt(0.09 / 1000)
    assert not any(f.warnings for f in found)
    # the delta method's: sd(w) / (mean(w) sqrt(N))
    weights = [torch.softmax(forward(num, spread, 50 + seed), 0) for seed in range(1000)]
    delta = [(num * (w - 1 / num).square().sum() / (num - 1)).sqrt().item() for w in weights]
    by_delta = [abs(f.log_z - truth(spread)) < 2 * d for f, d in zip(found, delta, strict=True)]
    assert sum(by_delta) / 1000 < 0.9 or spread < 2


def test_weights_too_wide_for_any_number_are_doubted_and_narrower_ones_are_not():
    for call, weights in ((from_forward, forward), (from_reverse, reverse)):
        for spread in (0.1, 1.0, 4.0):
            assert call(weights(500, spread)).warnings == ()
        (text,) = call(weights(500, 10.0)).warnings
        assert "\n" not in text and "too wide" in text
    assert not bennett(forward(100, 1.0), reverse(100, 1.0)).warnings
    (apart,) = bennett(forward(100, 8.0), reverse(100, 8.0)).warnings
    assert "hardly overlap" in apart


def test_a_few_chains_are_doubted_whatever_their_weights():
    (text,) = from_forward(forward(7, 0.1)).warnings
    assert "7 chains are too few" in text and not from_forward(forward(8, 0.1)).warnings


def test_one_heavy_path_among_many_is_in_the_error():
    u = torch.zeros(1000, dtype=F64)
    u[0] = 6.5
    found = from_forward(u)
    assert found.log_z > 0.5 and found.stderr > 0.9 * found.log_z


def test_a_single_point_of_weight_has_no_error():
    share = torch.full((10,), -torch.inf, dtype=F64)
    share[3] = 0.0
    found = from_reverse(forward(10, 1.0), share)
    assert found.log_z == forward(10, 1.0)[3] and math.isnan(found.stderr)


def biased(num, spread, tilt, seed):
    """Reverse points x = log w drawn N(m + tilt, s^2) instead of N(m + s^2, s^2), with the
    log-weights that make up for it."""
    u = MEAN + tilt + spread * normal((num,), seed)
    return u, ((u - MEAN - tilt) ** 2 - (u - MEAN - spread**2) ** 2) / (2 * spread**2)


@pytest.mark.parametrize("tilt", [0.0, 0.5, 1.4])
def test_reverse_points_may_carry_weights(tilt):
    spread = 1.0
    v, share = biased(500, spread, tilt, 31)
    joined = bennett(forward(100, spread, 30), v[:100], share[:100])
    for found in (joined, from_reverse(v, share)):
        assert abs(found.log_z - truth(spread)) < 3.5 * found.stderr < 0.7
    moved = bennett(forward(100, spread, 30), v[:100], share[:100] + 100.0)
    assert moved.log_z == pytest.approx(joined.log_z, abs=1e-9)
    ignored = from_reverse(v)
    assert abs(ignored.log_z - truth(spread)) > 4 * ignored.stderr


def test_the_standard_error_of_weighted_points_is_honest():
    spread, tilt = 0.8, 0.2
    for call in (
        lambda seed: from_reverse(*biased(200, spread, tilt, seed)),
        lambda seed: bennett(forward(30, spread, seed + 500), *biased(30, spread, tilt, seed)),
    ):
        found = [call(seed) for seed in range(60)]
        errors = torch.tensor([f.log_z - truth(spread) for f in found], dtype=F64)
        stated = torch.tensor([f.stderr for f in found], dtype=F64)
        assert 0.88 <= (errors.abs() < 2 * stated).double().mean() <= 1
        assert 0.75 < (errors.square().mean() / stated.square().mean()).sqrt() < 1.3


def test_points_of_no_weight_count_for_nothing():
    v, share = biased(50, 1.0, 0.5, 40)
    u = forward(50, 1.0, 41)
    more = torch.cat([v, torch.full((5,), 40.0, dtype=F64)])
    none = torch.cat([share, torch.full((5,), -torch.inf, dtype=F64)])
    one, other = bennett(u, v, share), bennett(u, more, none)
    assert other.log_z == pytest.approx(one.log_z, abs=1e-9)
    assert from_reverse(more, none).log_z == pytest.approx(from_reverse(v, share).log_z)


def test_float32_weights_lose_little():
    u, v = forward(50, 1.0) + 900, reverse(50, 1.0) + 900
    for call in (lambda a, b: from_forward(a), lambda a, b: from_reverse(b), bennett):
        one, other = call(u, v), call(u.float(), v.float())
        assert other.log_z == pytest.approx(one.log_z, abs=1e-4)
        assert other.stderr == pytest.approx(one.stderr, rel=1e-3)
