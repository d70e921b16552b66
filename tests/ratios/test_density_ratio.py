"""log_density_ratio against closed forms: values, errors, the divergence, the test of equality."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ebm_app.cli.command_line import run_script
from ebm_app.tabular.gaussian_base import GaussianRatio, best_base
from ebm_app.tabular.two_samples import log_density_ratio
from ebm_app.utils.errors import UserError

SHORT = {"steps": 100}
#: the Student quantile of 97.5 percent of 9 degrees of freedom
QUANTILE = 2.262


def numbers(seed=0):
    return np.random.default_rng(seed)


def mixture(seed, num):
    """Rows of p_1: two narrow modes in the second of two columns."""
    g = numbers(seed)
    modes = np.where(g.integers(0, 2, num), 1.5, -1.5)
    return np.stack([g.standard_normal(num), modes + 0.5 * g.standard_normal(num)], 1)


def truth(x):
    """The log ratio of that mixture to N(0, 1.5^2 I)."""
    modes = [stats.norm.logpdf(x[:, 1], at, 0.5) for at in (1.5, -1.5)]
    log_mixture = stats.norm.logpdf(x[:, 0]) + np.logaddexp(*modes) - np.log(2)
    return log_mixture - stats.norm.logpdf(x, 0, 1.5).sum(1)


def gaussians(dim, shift, scale):
    """Draws of N(0, I) and of N(shift, scale^2 I), and their log ratio."""

    def draw(seed, num):
        return numbers(seed).standard_normal((num, dim))

    def exact(x):
        return (stats.norm.logpdf(x, shift, scale) - stats.norm.logpdf(x)).sum(1)

    return draw, lambda seed, num: shift + scale * draw(seed, num), exact


def wide(seed, num):
    """Rows of N(0, 1.5^2 I)."""
    return 1.5 * numbers(seed).standard_normal((num, 2))


#: rows of either sample, how they are drawn, and the log ratio
PROBLEMS = {
    "shift, D = 2": (1000, *gaussians(2, 0.5, 1.0)),
    "shift, D = 20": (2000, *gaussians(20, 0.2, 1.0)),
    "shift and scale, D = 5": (2000, *gaussians(5, 0.2, 0.8)),
    "two modes": (3000, wide, mixture, truth),
}


@pytest.fixture(scope="module")
def of_mixture():
    """The ratio of that mixture."""
    return log_density_ratio(wide(1, 3000), mixture(2, 3000), steps=300)


def test_a_mixture_over_a_gaussian(of_mixture):
    x = mixture(3, 2000)
    value, error = of_mixture.score_samples(x, return_std=True)
    away = np.abs(value - truth(x))
    assert np.sqrt((away**2).mean()) < 0.25 < truth(x).std()
    assert (away < QUANTILE * error).mean() > 0.85 and error.mean() < 0.3
    divergence = truth(mixture(4, 200_000)).mean()
    assert abs(of_mixture.kl_bound - divergence) < 3.5 * of_mixture.kl_stderr < 0.15
    assert of_mixture.p_value < 1e-6 and not of_mixture.warnings


def test_weights_move_means_from_one_density_to_the_other(of_mixture):
    weights = of_mixture.weights
    assert weights.mean() == pytest.approx(1, abs=1e-12)
    # E[x_1^2] = 1 and E[x_2^2] = 1.5^2 + 0.5^2 over p_1, and 1.5^2 over p_0
    np.testing.assert_allclose((weights[:, None] * wide(1, 3000) ** 2).mean(0), [1, 2.5], atol=0.2)
    assert 500 < of_mixture.effective_rows < 3000


@pytest.mark.parametrize("dim", [1, 20])
def test_shifted_gaussians_need_the_base_alone(dim):
    draw0, draw1, exact = gaussians(dim, 0.5 / dim**0.5, 1.0)
    found, x = log_density_ratio(draw0(1, 2000), draw1(2, 1500), **SHORT), draw1(3, 1000)
    value, error = found.score_samples(x, return_std=True)
    away = np.abs(value - exact(x))
    assert (away < QUANTILE * error).mean() > 0.8 and np.sqrt((away**2).mean()) < 0.3
    assert found.kl_bound - 0.125 < 3.5 * found.kl_stderr


@pytest.mark.process
def test_one_density_twice():
    g = numbers(7)
    samples = [(g.standard_normal((300, 2)), g.standard_normal((400, 2))) for _ in range(3)]
    found = [log_density_ratio(*pair, **SHORT, random_state=n) for n, pair in enumerate(samples)]
    assert min(ratio.p_value for ratio in found) > 0.01
    assert max(ratio.interval[0] for ratio in found) <= 0
    for ratio in found:
        value, error = ratio.score_samples(np.ones((1, 2)), return_std=True)
        assert 0 < error.item() < 0.7 and abs(value.item()) < QUANTILE * error.item()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_errors_are_as_large_as_they_say(name, capsys):
    """Over ten pairs of samples: the shares in docs/results.md, which ``-s`` prints."""
    num, draw0, draw1, exact = PROBLEMS[name]
    x, divergence = draw1(10_000, 2000), exact(draw1(10_001, 200_000)).mean()
    rows = []
    for seed in range(10):
        found = log_density_ratio(draw0(seed, num), draw1(seed + 100, num), random_state=seed)
        value, error = found.score_samples(x, return_std=True)
        away = np.abs(value - exact(x))
        rows.append(
            (
                np.sqrt((away**2).mean()),
                np.sqrt((error**2).mean()),
                (away < QUANTILE * error).mean(),
                found.kl_bound,
                found.kl_stderr,
                found.interval[0] <= divergence,
            )
        )
    away, error, covered, bound, stderr, below = np.mean(rows, 0)
    with capsys.disabled():
        print(
            f"\n| {name} | {num:,} | {away:.2f} | {error:.2f} | {covered:.0%} | {divergence:.3f} "
            f"| {bound:.3f} ± {stderr:.3f} | {below:.0%} |"
        )
    assert covered > 0.85 and below >= 0.8
    assert abs(bound - divergence) < 2 * stderr


def test_samples_that_do_not_overlap_and_few_rows_are_warned_of():
    g = numbers(11)
    apart = log_density_ratio(g.normal(0, 1, (300, 2)), g.normal(9, 1, (300, 2)), **SHORT)
    assert any("hardly overlap" in warning for warning in apart.warnings)
    assert any("rows of p_0" in warning for warning in apart.warnings)
    assert apart.summary().startswith("Beware: ")


def test_the_base_by_its_closed_form():
    draw0, draw1, exact = gaussians(3, 0.5, 1.3)
    x0, x1, x = draw0(14, 200_000), draw1(15, 200_000), draw0(16, 50)
    np.testing.assert_allclose(GaussianRatio(x0, x1, 1.0)(x), exact(x), atol=0.1)
    linear = GaussianRatio(x0, x1, 0.0)
    step = linear(x + 1) - linear(x)
    np.testing.assert_allclose(step, step[0])
    best = best_base((x0, x1), (x0[:999], x1[:999]))
    assert best.is_used
    none = best_base((x0[:50], x0[50:100]), (x0[100:5000], x0[5000:9900]))
    assert not none.is_used
    np.testing.assert_allclose(none(x), GaussianRatio(x0[:50], x0[50:100], 0.0)(x))


@pytest.mark.parametrize(
    ("x0", "x1", "message"),
    [
        (np.zeros((100, 2)), np.zeros((100, 3)), "x0 has 2 columns and x1 has 3"),
        (np.arange(120.0), np.r_[np.nan, np.arange(120.0)], "NaN or infinite, the first in row 1"),
        (
            np.arange(120.0),
            np.arange(49.0),
            "at least 50, 5 for each of 10 folds, or set num_folds to 9",
        ),
        (np.zeros(120), np.zeros(120), "constant over all rows, .* are column 1 of x0"),
    ],
)
def test_a_mistake_is_one_sentence(x0, x1, message):
    with pytest.raises(UserError, match=message):
        log_density_ratio(x0, x1)


def test_rows_of_other_columns_have_no_ratio(of_mixture):
    with pytest.raises(UserError, match="x has 1 columns and x0 has 2"):
        of_mixture.score_samples(np.zeros(3))
    with pytest.raises(UserError, match="NaN"):
        of_mixture.score_samples(np.full((1, 2), np.nan))


def test_data_frames_have_the_same_columns_in_the_same_order():
    g = numbers(13)
    a, b = (pd.DataFrame(g.normal(size=(120, 2)), columns=list("uv")) for _ in range(2))
    found = log_density_ratio(a, b, steps=5)
    assert found.score_samples(b[:3]).shape == (3,)
    assert (found.score_samples(b[:3].to_numpy()) == found.score_samples(b[:3])).all()
    other = b[["v", "u"]]
    for call in (lambda: log_density_ratio(a, other), lambda: found.score_samples(other)):
        with pytest.raises(UserError, match="v, u.* in another order"):
            call()


def test_the_script(script, capsys, tmp_path):
    main, g = script("evaluate/ratio.py").main, numbers(12)
    for name, x in (("a", g.normal(0, 1, (300, 2))), ("b", g.normal(1, 1, (250, 2)))):
        np.save(tmp_path / f"{name}.npy", x)
        np.savetxt(tmp_path / f"{name}.csv", x, delimiter=",", header="u,v", comments="")
    out = tmp_path / "out"
    common = ["--iterations", "50", "--output_dir", str(out)]
    arrays = [f"--x0 {tmp_path / 'a.npy'} --x1 {tmp_path / 'b.npy'}", f"--at {tmp_path / 'b.npy'}"]
    answer = main([*" ".join(arrays).split(), *common])
    assert answer["kl_bound"] == pytest.approx(1, abs=0.5)
    assert "KL divergence of p_1 from p_0: at least" in capsys.readouterr().out
    at = np.genfromtxt(out / "at.csv", delimiter=",", names=True)
    assert at.dtype.names == ("log_ratio", "stderr") and len(at) == 250 and at["stderr"].all()
    assert [len(np.loadtxt(out / f"{name}.csv", skiprows=1)) for name in ("x0", "x1")] == [
        300,
        250,
    ]
    assert (out / "ratio.json").exists() and (out / "ratio.png").exists()
    tables = [f"--x0={tmp_path / 'a.csv'}", f"--x1={tmp_path / 'b.csv'}"]
    again = main([*tables, "--columns", "u", "v", *common])
    assert again["kl_bound"] == pytest.approx(answer["kl_bound"], abs=1e-6)
    assert run_script(main, [*tables, *common]) == 2
    assert "name the columns to read from it" in capsys.readouterr().err
