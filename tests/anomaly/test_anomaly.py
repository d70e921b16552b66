"""Anomaly detection: scores in closed form, conformal p-values, maps, shifts, and the script."""

import json

import numpy as np
import pytest
import torch
from conftest import GREY, error_of
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import LedoitWolf

from ebm_app.anomaly import AnomalyDetector, two_sample_test
from ebm_app.anomaly.detector import FITTED_FILE, RECORD_FILE, conformal
from ebm_app.anomaly.passes import Passes, copies, noise_levels, passes
from ebm_app.anomaly.scores import SCORES, TAIL, log_rank
from ebm_app.anomaly.shift import energy_distances
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.folders import BUNDLED


@pytest.fixture(scope="module")
def detector():
    return AnomalyDetector("digits")


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def some_passes(num=200, seed=0):
    draw = torch.Generator().manual_seed(seed)
    squares, expected = (torch.rand(num, 2, 4, 4, generator=draw) + 0.5 for _ in range(2))
    return Passes(
        squares,
        expected,
        torch.randn(num, 2, generator=draw, dtype=torch.float64),
        torch.randn(num, 8, generator=draw, dtype=torch.float64),
    )


def test_a_linear_score_leaves_the_residuals_it_must(monkeypatch):
    """With s(x, t) = -x, e - e_s = e - sqrt(v) (alpha y + sqrt(v) e) = alpha^2 e - alpha sqrt(v) y
    where alpha^2 + v = 1, and no copy of an image fits better than it."""
    ebm = EBM(GREY).double().eval()

    def output(x, t):
        return type("Output", (), {"score": -x, "components": 0 * x, "variance": None})

    monkeypatch.setattr(ebm.energy, "output", output)
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    found, (times, num_shapes) = passes(ebm, images), noise_levels(ebm)
    seeds = [torch.Generator().manual_seed(0) for _ in range(2)]
    e = torch.randn((len(times), 1, 8, 8), generator=seeds[0]).double()
    u = torch.rand((1, 1, 8, 8), generator=seeds[1]).double().expand(3, -1, -1, -1)
    y = ebm.dequantise(images, u).y
    for index, time in enumerate(times):
        t = torch.tensor(time, dtype=torch.float64)
        alpha, v = ebm.energy.path.alpha(t), ebm.energy.path.variance(t)
        residual = alpha**2 * e[index] - alpha * v.sqrt() * y
        torch.testing.assert_close(found.squares[:, index], residual.square().mean(1))
    losses = found.squares[:, :num_shapes].sum((1, 2, 3)) / 2
    torch.testing.assert_close(found.losses, losses[:, None].expand(-1, 8))


def test_copies_are_the_symmetries_of_a_square():
    square, oblong = torch.arange(4.0).view(1, 2, 2), torch.arange(6.0).view(1, 2, 3)
    assert len({tuple(x.flatten().tolist()) for x in copies(square)}) == 8
    found = copies(oblong)
    assert len({tuple(x.flatten().tolist()) for x in found}) == 4
    assert {x.shape for x in found} == {(1, 2, 3)} and (found[0] == oblong).all()


def test_scores_are_their_equations():
    ordinary, other = some_passes(), some_passes(5, seed=1)
    fitted = {name: kind().fit(ordinary) for name, kind in SCORES.items()}
    found = {name: score(other) for name, score in fitted.items()}
    loss = other.losses
    torch.testing.assert_close(found["likelihood"], -loss[:, 0])
    middle = ordinary.losses[:, 0].sort().values[99:101]
    assert ((found["typicality"].neg() - (loss[:, 0] - middle[0]).abs()).abs() < 0.1).all()
    torch.testing.assert_close(found["symmetry"], (-loss).log_softmax(1)[:, 0])
    for name in ("residuals", "time_scores"):
        x, z = (fitted[name].features(part).numpy() for part in (ordinary, other))
        scale = x.std(0, ddof=1)
        precision = LedoitWolf().fit((x - x.mean(0)) / scale).precision_
        expected = [-(mahalanobis(r, x.mean(0) / scale, precision) ** 2) for r in z / scale]
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_ranks_go_on_beyond_the_reference():
    reference = torch.arange(1.0, 101)
    ranks = log_rank(torch.tensor([200.0, 50.5, 0.0, -10.0]), reference).exp()
    assert ranks[0] == 1 and ranks[1] == pytest.approx(51 / 101)
    q = np.quantile(reference, TAIL)
    mean = np.mean([q - s for s in range(1, 101) if s < q])
    assert ranks[2].item() == pytest.approx(TAIL * np.exp(-q / mean))
    assert ranks[3].item() == pytest.approx(TAIL * np.exp(-(q + 10) / mean))


def test_p_values_are_exact():
    """Of n + 1 distinct numbers each is as likely to be the new one: P(p <= k / (n + 1)) is k /
    (n + 1)."""
    scores = torch.randperm(20).double()
    p = [conformal(scores[k : k + 1], scores[torch.arange(20) != k])[0] for k in range(20)]
    np.testing.assert_allclose(sorted(p), np.arange(1, 21) / 20)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2])
def test_predictions_are_those_of_the_p_value(detector, digits, rate):
    images = digits.test[:40] / 16
    images = torch.cat([images, 1 - images[:5]])
    found, told = detector.examine(images), detector.predict(images, false_alarm_rate=rate)
    assert ((told == -1) == (found.p_value <= rate)).all() and (told[-5:] == -1).all()
    assert ((detector.decision_function(images, rate) < 0) == (told == -1)).all()
    # binomial, and of a threshold that is itself drawn
    assert (told[:40] == -1).mean() <= rate + 3 * np.sqrt(rate * (1 - rate) * (1 / 40 + 1 / 25))


def test_kinds_of_odd_images_are_told(detector, digits):
    images = digits.test[:60] / 16
    usual = detector.score_samples(images)
    blank, turned = torch.zeros(1, 1, 8, 8), images.rot90(1, (-2, -1))
    assert detector.score_samples(blank) < usual.min()
    assert np.median(detector.score_samples(turned)) < usual.min()
    # as arrays and as levels, alone or with others
    alone = detector.score_samples(digits.test[:1].numpy())
    np.testing.assert_allclose(alone, usual[:1], rtol=1e-4)


def test_maps_show_a_planted_patch(detector, digits):
    images = digits.test[:20] / 16
    planted = images.clone()
    planted[:, :, :3, :3] = torch.eye(3)
    maps = detector.explain(planted)
    corner = maps[:, :3, :3].reshape(20, -1).max(1)
    assert maps.shape == (20, 8, 8)
    assert (corner >= maps.reshape(20, -1).max(1)).mean() > 0.8


def test_the_nearest_of_the_images_that_fitted_are_found(detector, digits):
    found = detector.nearest(digits.validation[7:8] / 16)
    distances = (digits.validation.int() - digits.validation[7].int()).square().sum((1, 2, 3))
    assert (found == digits.validation[distances.argsort()[:3]]).all()


def test_what_is_fitted_is_kept_with_the_model(tmp_path, digits):
    fitted = AnomalyDetector("digits", "residuals").fit(digits.validation)
    fitted.model.save_pretrained(tmp_path)
    assert not AnomalyDetector(tmp_path).is_fitted
    fitted.save(tmp_path, dataset="digits")
    read = AnomalyDetector(tmp_path, "residuals")
    given, found = fitted.examine(digits.test[:4]), read.examine(digits.test[:4])
    np.testing.assert_allclose(found.score, given.score, rtol=1e-3)
    assert (found.p_value == given.p_value).all()
    np.testing.assert_allclose(found.maps, given.maps, rtol=1e-4, atol=1e-4)
    assert (read.nearest(digits.validation[7:8]) == fitted.nearest(digits.validation[7:8])).all()
    other = {**json.loads((tmp_path / RECORD_FILE).read_text()), "weights": "of another model"}
    (tmp_path / RECORD_FILE).write_text(json.dumps(other))
    assert not AnomalyDetector(tmp_path).is_fitted


@pytest.mark.parametrize("name", ["digits", "mnist", "mnist-latent"])
def test_bundled_models_come_fitted(name):
    record = json.loads((BUNDLED / name / RECORD_FILE).read_text())
    assert record["split"] == "validation" and AnomalyDetector(name).is_fitted
    assert (BUNDLED / name / FITTED_FILE).stat().st_size < 2**20


def test_mistakes_are_explained(detector, digits):
    images, ebm = digits.test[:3], detector.model
    rate = "false-alarm rate of 0.01 takes 99 images to calibrate, .* fit to more images"
    assert "not fitted: call fit" in error_of(AnomalyDetector(ebm).p_value, images)
    assert "too few to fit" in error_of(AnomalyDetector(ebm).fit, images)
    assert "choose one of" in error_of(AnomalyDetector, ebm, "entropy")
    with pytest.raises(ValueError, match=rate):
        detector.predict(images, false_alarm_rate=0.01)
    assert "false_alarm_rate" in error_of(detector.predict, images, 1.5)
    assert "takes images of shape" in error_of(detector.predict, torch.zeros(1, 1, 28, 28))
    assert "too few" in error_of(two_sample_test, ebm, images, images[:1])


def test_energy_distances_are_their_equation():
    x, in_a = torch.randn(7, 3).double(), torch.tensor([1, 0, 1, 1, 0, 0, 1]).double()
    a, b = x[in_a == 1], x[in_a == 0]
    expected = 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
    found = energy_distances(torch.cdist(x, x), in_a[None])
    torch.testing.assert_close(found, expected[None])


def test_a_shift_between_two_sets_is_found(detector, digits):
    a, b = digits.test[:40], digits.test[40:80]
    alike = two_sample_test(detector.model, a, b, 199)
    shifted = two_sample_test(detector.model, a, torch.cat([b[:20], b[20:].flip(-1)]), 199)
    assert alike.p_value > 0.05 > shifted.p_value and shifted.b.shape == (40,)
    assert shifted.b[20:].mean() < shifted.b[:20].mean()  # the mirrored are least like a


def test_the_script_says_how_odd_images_are_told(script, tmp_path, capsys):
    module = script("evaluate/anomaly.py")
    found = module.main(
        ["digits", "--limit", "12", "--output_dir", str(tmp_path), "--seed", str(2**32)]
    )
    rows = found["rows"]
    assert rows["inverted"]["auroc"] == 1
    assert "| odd images | num_images | auroc | isolation forest |" in capsys.readouterr().out
    assert set(found["false_alarms"]) == {"0.01", "0.05", "0.1"}
    assert module.auroc(np.array([1.0, 2, 3]), np.array([0.0, 2])) == pytest.approx(0.75)
