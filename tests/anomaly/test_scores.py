"""Features, scores, p-values, the two-sample test and verdicts, against their equations."""

import math

import numpy as np
import pytest
import torch
from conftest import GREY, error_of
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import LedoitWolf

from ebm_app.anomaly import conformal_p_values, two_sample_test
from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.anomaly.features import GREY as LEVELS
from ebm_app.anomaly.features import Features, extract_features, image_statistics, noise_times
from ebm_app.anomaly.features import symmetric_copies as copies
from ebm_app.anomaly.p_values import energy_distances
from ebm_app.anomaly.scores import SCORES, TAIL, log_rank
from ebm_app.anomaly.verdict import NO_DETECTOR, VERY_UNUSUAL, examine, place_of, verdict
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.nets.time_score import ModelOutput


def test_residuals_of_a_linear_score_in_closed_form(monkeypatch):
    """For s(x, t) = -x and alpha^2 + v = 1, e - e_s = alpha^2 e - alpha sqrt(v) y, and all copies
    have the same loss."""
    ebm = EBM(GREY).double().eval()

    monkeypatch.setattr(ebm.model, "output", lambda x, t: ModelOutput(0 * x, -x, None))
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    features, times = extract_features(ebm, images), noise_times(ebm)
    noise = torch.randn((len(times), 1, 8, 8), generator=torch.manual_seed(0)).double()
    u = torch.rand((1, 1, 8, 8), generator=torch.manual_seed(0)).double().expand(3, -1, -1, -1)
    y = ebm.dequantise(images, u).y
    for index, time in enumerate(times):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, v = ebm.model.path.alpha(t), ebm.model.path.variance(t)
        residual = alpha**2 * noise[index] - alpha * v.sqrt() * y
        torch.testing.assert_close(features.squares[:, index], residual.square().mean(1))
    losses = features.squares[:, : len(LEVELS[0])].sum((1, 2, 3)) / 2
    torch.testing.assert_close(features.losses, losses[:, None].expand(-1, 8))


def test_statistics_of_a_checkerboard_in_closed_form():
    """Neighbours differ by 1, and the means of 2 x 2 and 4 x 4 squares are all 1/2."""
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    (statistics,) = image_statistics(board.expand(1, 3, 8, 8).double())
    std = (64 / 63 / 4) ** 0.5
    expected = [0.5] * 3 + [math.log(std + 0.01)] * 3 + [math.log(d + 1e-5) for d in (1, 0, 0)]
    found = torch.cat([statistics[:6], statistics[7:]])
    torch.testing.assert_close(found, torch.tensor(expected).double())
    simpler = image_statistics(torch.zeros(1, 3, 8, 8))
    assert simpler[0, 6] < statistics[6]


@pytest.mark.parametrize(("shape", "num"), [((1, 2, 2), 8), ((1, 2, 3), 4), ((3, 2, 2), 1)])
def test_copies_keep_the_shape_and_differ(shape, num):
    image = torch.arange(float(torch.Size(shape).numel())).view(shape)
    rotated = copies(image)
    assert len({tuple(x.flatten().tolist()) for x in rotated}) == len(rotated) == num
    assert all(x.shape == shape for x in rotated) and torch.equal(rotated[0], image)


def random_features(num, seed):
    draw = torch.Generator().manual_seed(seed)
    squares, expected = (torch.rand(num, 2, 4, 4, generator=draw) + 0.5 for _ in range(2))
    time_scores = torch.randn(num, 2, generator=draw, dtype=torch.float64)
    losses = torch.randn(num, 8, generator=draw, dtype=torch.float64)
    statistics = torch.randn(num, 5, generator=draw, dtype=torch.float64)
    return Features(statistics, squares, expected, time_scores, losses)


def test_scores_match_their_equations():
    ordinary, other = random_features(200, seed=0), random_features(5, seed=1)
    found = {name: score(other, score.fit(ordinary)) for name, score in SCORES.items()}
    torch.testing.assert_close(found["likelihood"], -other.losses[:, 0])
    torch.testing.assert_close(found["symmetry"], (-other.losses).log_softmax(1)[:, 0])
    for name in ("residuals", "time_scores"):
        x, z = (SCORES[name].vectors(part).numpy() for part in (ordinary, other))
        scale = x.std(0, ddof=1)
        precision = LedoitWolf().fit((x - x.mean(0)) / scale).precision_
        expected = [-(mahalanobis(r, x.mean(0) / scale, precision) ** 2) for r in z / scale]
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_log_rank_extrapolates_below_the_reference():
    reference = torch.arange(1.0, 101)
    ranks = log_rank(torch.tensor([200.0, 50.5, 0.0, -10.0]), reference).exp()
    assert ranks[0] == 1 and ranks[1] == pytest.approx(51 / 101)
    q = np.quantile(reference, TAIL)
    mean = np.mean([q - s for s in range(1, 101) if s < q])
    assert ranks[2].item() == pytest.approx(TAIL * np.exp(-q / mean))
    assert ranks[3].item() == pytest.approx(TAIL * np.exp(-(q + 10) / mean))


@pytest.mark.parametrize("num_tied", [11, 50, 99, 100])
def test_log_rank_orders_scores_below_tied_references(num_tied):
    reference = torch.cat([torch.zeros(num_tied), torch.arange(1.0, 101 - num_tied)])
    ranks = log_rank(torch.tensor([-9.0, -1.0, 0.0, 200.0]), reference).exp().tolist()
    assert ranks[0] <= ranks[1] < TAIL < ranks[2] <= ranks[3] == 1
    assert num_tied == 100 or ranks[0] < ranks[1]
    assert ranks[2] == pytest.approx((1 + num_tied) / 101)


@pytest.mark.parametrize("call", [log_rank, conformal_p_values])
def test_scores_that_are_not_finite_are_refused(call):
    good, wrong = torch.arange(20.0), torch.tensor([1.0, torch.nan, torch.inf, -torch.inf])
    for scores in ((wrong, good), (good, wrong)):
        assert "3 of 4 images" in error_of(call, *scores)


def test_conformal_p_values_are_uniform():
    """Each of n + 1 distinct scores is equally likely to be the new one."""
    scores = torch.randperm(20).double()
    others = [scores[torch.arange(20) != k] for k in range(20)]
    p = [conformal_p_values(scores[k : k + 1], others[k])[0] for k in range(20)]
    np.testing.assert_allclose(sorted(p), np.arange(1, 21) / 20)


def test_energy_distance_matches_its_equation():
    x, in_a = torch.randn(7, 3).double(), torch.tensor([1, 0, 1, 1, 0, 0, 1]).bool()
    a, b = x[in_a], x[~in_a]
    expected = 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
    torch.testing.assert_close(energy_distances(torch.cdist(x, x), in_a[None]), expected[None])


def test_two_sample_test_detects_mirrored_images():
    ebm, digits = EBM.from_pretrained("digits"), load_images("digits")
    a, b = digits.test[:80], digits.test[80:160]
    same = two_sample_test(ebm, a, b, 199)
    shifted = two_sample_test(ebm, a, torch.cat([b[:40], b[40:].flip(-1)]), 199)
    assert same.p_value > 0.05 > shifted.p_value and shifted.b.shape == (80,)
    assert shifted.b[40:].mean() < shifted.b[:40].mean()


def test_each_verdict_states_its_p_value():
    facts = {"p_value": 0.64, "percentile": 100.0, "class": "7", "most_unusual": "lower left"}
    share = "percent of held-out images are at least as unusual (p ="
    unusual = {"p_value": 0.03, "percentile": 3.0}
    for change, words in (
        ({}, f"Usual 7: 64 {share} 0.64)."),
        ({"class": None}, "Usual image: "),
        (unusual, f"Unusual, mostly at the lower left: 3 {share} 0.03"),
        (unusual | {"p_value": 0.002}, "Very unusual, mostly at the lower left: 0.2 "),
        ({"p_value": 0.03, "most_unusual": None}, "Unusual, a blank image: "),
        ({"p_value": None}, NO_DETECTOR),
    ):
        assert verdict(facts | change).startswith(words)
    assert verdict(facts | {"p_value": 0.04}).endswith(", and simpler than all of them.")


def test_place_names_the_third_of_the_image():
    excess = np.zeros((9, 9))
    for row, column, place in ((0, 8, "upper right"), (4, 0, "left"), (4, 4, "middle")):
        excess[row, column] = excess.max() + 1
        assert place_of(excess) == place


def test_verdict_of_an_image_states_its_p_value():
    detector, blank = AnomalyDetector("digits"), torch.zeros(1, 1, 8, 8)
    p = detector.p_value(blank).item()
    words = verdict({**examine(detector, blank)[0], "class": "9"})
    assert words.startswith("Very unusual" if p <= VERY_UNUSUAL else "Unusual")
    assert f"(p = {p:.2g})" in words
