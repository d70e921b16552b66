"""``AnomalyDetector``: decisions, maps, files."""

import json

import numpy as np
import pytest
import torch
from conftest import GREY, error_of, save_picture
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

from ebm_app.anomaly import AnomalyDetector, two_sample_test
from ebm_app.anomaly.detector import FITTED_FILE, RECORD_FILE
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.folders import BUNDLED


@pytest.fixture(scope="module")
def detector():
    return AnomalyDetector("digits")


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def test_predictions_agree_with_p_values(detector, digits):
    rate, images = 0.2, digits.test[:40] / 16
    images = torch.cat([images, 1 - images[:5]])
    found = detector.examine(images)
    predicted = clone(detector).set_params(false_alarm_rate=rate).predict(images)
    assert ((predicted == -1) == (found.p_value <= rate)).all() and (predicted[-5:] == -1).all()
    # the binomial error of 40 images and that of a threshold from 100
    stderr = np.sqrt(rate * (1 - rate) * (1 / 40 + 1 / 100))
    assert (predicted[:40] == -1).mean() <= rate + 3 * stderr


class TableDetector(AnomalyDetector):
    """Draws rows of a table as images, so that scikit-learn's checks can use their tables."""

    def fit(self, X, y=None):
        return super().fit(self.draw(validate_data(self, X, ensure_min_samples=10)))

    def examine(self, X):
        check_is_fitted(self)
        return super().examine(self.draw(validate_data(self, X, reset=False)))

    @staticmethod
    def draw(rows):
        angles = rows.astype(float) @ np.random.RandomState(0).randn(200, 64)[: rows.shape[1]]
        return (8 + 8 * np.sin(angles)).round().astype(np.uint8)


@pytest.mark.process
def test_detector_passes_the_checks_of_scikit_learn(monkeypatch, tmp_path):
    monkeypatch.setattr("ebm_app.anomaly.detector.MIN_IMAGES", 1)
    EBM(GREY).save_pretrained(tmp_path)
    detector = TableDetector(tmp_path, false_alarm_rate=0.3)
    results = check_estimator(detector, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {} and len(results) > 40


def test_p_values_support_a_rate_of_two_percent(detector, digits):
    """Of a blank, an inverted digit and noise, the verdict is unusual; held-out digits are not."""
    noise = torch.randint(0, 17, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    images = torch.cat([torch.zeros(1, 1, 8, 8), torch.ones(1, 1, 8, 8), noise / 16])
    images = torch.cat([images, 1 - digits.test[:5] / 16])
    assert detector.smallest_p_value == pytest.approx(1 / 101)
    assert (detector.p_value(images) <= 0.02).all()
    flagged = int((detector.p_value(digits.test) <= 0.02).sum())
    # binomial error of the threshold from 100 images and of 297 images
    assert flagged / 297 <= 0.02 + 3 * np.sqrt(0.02 * 0.98 * (1 / 100 + 1 / 297))


def test_maps_locate_a_planted_patch(detector, digits):
    planted = digits.test[:20] / 16
    planted[:, :, :3, :3] = torch.eye(3)
    maps = detector.explain(planted)
    corner = maps[:, :3, :3].reshape(20, -1).max(1)
    assert maps.shape == (20, 8, 8)
    assert (corner >= maps.reshape(20, -1).max(1)).mean() > 0.8


def test_nearest_sorts_by_pixel_distance(detector, digits):
    found = detector.nearest(digits.validation[7:8] / 16)
    distances = (digits.validation.int() - digits.validation[7].int()).square().sum((1, 2, 3))
    assert (found == digits.validation[distances.argsort()[:3]]).all()


def test_saved_detector_loads_with_its_model(tmp_path, digits):
    fitted = AnomalyDetector("digits", "residuals").fit(digits.validation)
    fitted.ebm.save_pretrained(tmp_path)
    assert not AnomalyDetector(tmp_path).is_fitted
    fitted.save(tmp_path, dataset="digits")
    loaded = AnomalyDetector(tmp_path, "residuals")
    expected, found = (each.examine(digits.test[:4]) for each in (fitted, loaded))
    np.testing.assert_allclose(found.score, expected.score, rtol=1e-3)
    assert (found.p_value == expected.p_value).all()
    np.testing.assert_allclose(found.maps, expected.maps, rtol=1e-4, atol=1e-4)
    other = {**json.loads((tmp_path / RECORD_FILE).read_text()), "weights": "of another model"}
    (tmp_path / RECORD_FILE).write_text(json.dumps(other))
    assert not AnomalyDetector(tmp_path).is_fitted


def test_damaged_fitted_values_are_refused(tmp_path, detector, digits):
    detector.ebm.save_pretrained(tmp_path)
    detector.save(tmp_path)
    tensors = load_file(tmp_path / FITTED_FILE)
    tensors["symmetry.calibration"][3] = torch.nan
    save_file(tensors, tmp_path / FITTED_FILE)
    damaged = AnomalyDetector(tmp_path)
    for _ in range(2):
        assert "not finite" in error_of(damaged.p_value, torch.zeros(1, 1, 8, 8))
    assert damaged.fit(digits.validation).is_fitted


@pytest.mark.parametrize("num", [1, 79])
def test_copies_do_not_count_as_images(detector, digits, num):
    images = digits.validation[torch.arange(240) % num]
    message = error_of(AnomalyDetector(detector.model).fit, images)
    assert f"got {num} among 240 images" in message


@pytest.mark.parametrize("name", ["digits", "mnist", "mnist-latent", "fashion", "cifar10"])
def test_bundled_models_have_a_fitted_detector(name):
    record = json.loads((BUNDLED / name / RECORD_FILE).read_text())
    assert record["split"] == "validation" and AnomalyDetector(name).is_fitted
    assert (BUNDLED / name / FITTED_FILE).stat().st_size < 2**20


def test_errors_name_the_value_and_the_remedy(detector, digits):
    images, ebm = digits.test[:3], detector.ebm
    assert "not fitted" in error_of(AnomalyDetector(ebm).p_value, images)
    assert "at least 80" in error_of(AnomalyDetector(ebm).fit, images)
    assert "entropy" in error_of(AnomalyDetector(ebm, "entropy").fit, images)
    assert "199 calibration" in error_of(detector.threshold, 0.005)
    assert "false_alarm_rate" in error_of(detector.threshold, 1.5)
    assert "at least 2" in error_of(two_sample_test, ebm, images, images[:1])


def test_detector_accepts_rows_pictures_and_paths_in_a_pipeline(digits, tmp_path):
    levels, folder = digits.validation[:90], tmp_path / "images"
    folder.mkdir()
    shades = (levels[:, 0] / 16 * 255).round().byte().numpy()
    paths = [save_picture(folder / f"{n:02}.png", pixels) for n, pixels in enumerate(shades)]
    pipeline = make_pipeline(FunctionTransformer(), AnomalyDetector("digits"))
    expected = pipeline.fit_predict(levels.flatten(1).numpy())
    assert set(expected) == {-1, 1} and (expected == pipeline.predict(levels / 16)).all()
    detector = pipeline[-1]
    kinds = [folder, paths, [Image.open(path) for path in paths]]
    for images in kinds:
        assert (detector.predict(images) == expected).all()
    excess = detector.score_samples(levels) - detector.offset_
    np.testing.assert_allclose(detector.decision_function(levels), excess)
