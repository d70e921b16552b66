"""``AnomalyDetector``: decisions, maps, files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import GREY, error_of
from safetensors.torch import load_file, save_file
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

from ebm_app.anomaly import FITTED_FILE, RECORD_FILE, AnomalyDetector, UnfittedError
from ebm_app.data.datasets import load_images
from ebm_app.ebm import EBM


@pytest.fixture(scope="module")
def detector():
    return AnomalyDetector.from_pretrained("digits")


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


def test_predictions_agree_with_p_values(detector, digits):
    rate, images = 0.2, digits.test[:40] / 16
    images = torch.cat([images, 1 - images[:5]])
    found = detector.examine(images)
    predicted = AnomalyDetector.from_pretrained("digits", rate).predict(images)
    assert ((predicted == -1) == (found.p_value <= rate)).all() and (predicted[-5:] == -1).all()
    # the binomial error of 40 images and that of a threshold from 100
    stderr = np.sqrt(rate * (1 - rate) * (1 / 40 + 1 / 100))
    assert (predicted[:40] == -1).mean() <= rate + 3 * stderr
    excess = detector.score_samples(images) - detector.offset_
    np.testing.assert_allclose(detector.decision_function(images), excess)


def test_anomalous_digits_have_small_p_values(detector, digits):
    noise = torch.randint(0, 17, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    images = torch.cat([torch.zeros(1, 1, 8, 8), torch.ones(1, 1, 8, 8), noise / 16])
    images = torch.cat([images, 1 - digits.test[:5] / 16])
    assert (detector.p_value(images) <= 0.02).all()
    flagged = int((detector.p_value(digits.test) <= 0.02).sum())
    # binomial error of the threshold from 100 images and of 297 images
    assert flagged / 297 <= 0.02 + 3 * np.sqrt(0.02 * 0.98 * (1 / 100 + 1 / 297))


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


def test_detector_passes_the_checks_of_scikit_learn(monkeypatch, tmp_path):
    monkeypatch.setattr("ebm_app.anomaly.MIN_IMAGES", 1)
    EBM(GREY).save_pretrained(tmp_path)
    detector = TableDetector(tmp_path, false_alarm_rate=0.3)
    results = check_estimator(detector, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {} and len(results) > 40


def test_saved_detector_is_loaded_bit_for_bit(tmp_path, detector, digits):
    fitted = AnomalyDetector(detector.ebm_).fit(digits.validation)
    fitted.ebm_.save_pretrained(tmp_path)
    with pytest.raises(UnfittedError, match="has no anomaly detector"):
        AnomalyDetector.from_pretrained(tmp_path)
    fitted.save(tmp_path, dataset="digits")
    loaded = AnomalyDetector.from_pretrained(tmp_path)
    for before, after in zip(fitted.fitted_, loaded.fitted_, strict=True):
        assert torch.equal(before, after)
    assert np.array_equal(
        fitted.score_samples(digits.test[:4]), loaded.score_samples(digits.test[:4])
    )
    record = json.loads((tmp_path / RECORD_FILE).read_text())
    assert (record["dataset"], record["num_images"]) == ("digits", 100)
    (tmp_path / RECORD_FILE).write_text(json.dumps(record | {"weights": "of another model"}))
    with pytest.raises(UnfittedError, match="Fit it again"):
        AnomalyDetector.from_pretrained(tmp_path)


def test_damaged_detector_is_refused(tmp_path, detector):
    detector.ebm_.save_pretrained(tmp_path)
    detector.save(tmp_path)
    tensors = load_file(tmp_path / FITTED_FILE)
    for name, values in tensors.items():
        others = {key: tensor for key, tensor in tensors.items() if key != name}
        for changed, word in (
            ({name: torch.full_like(values, torch.nan)}, name),
            ({name: values[None]}, name),
            ({}, "missing"),
        ):
            save_file(others | changed, tmp_path / FITTED_FILE)
            assert word in error_of(AnomalyDetector(detector.ebm_).load, tmp_path)


def test_copies_do_not_count_as_images(detector, digits):
    images = digits.validation[torch.arange(240) % 79]
    assert "got 79" in error_of(AnomalyDetector(detector.ebm_).fit, images)
    copies = AnomalyDetector(detector.ebm_).fit(digits.validation[torch.arange(120) % 100]).fitted_
    fitted = AnomalyDetector(detector.ebm_).fit(digits.validation).fitted_
    torch.testing.assert_close(copies.calibration, fitted.calibration)


def test_diverged_model_is_reported(digits):
    ebm = EBM(GREY)
    torch.nn.init.constant_(ebm.model.net.unet.conv_out.bias, torch.nan)
    assert "not finite" in error_of(AnomalyDetector(ebm).fit, digits.validation)


def test_errors_name_the_value_and_the_remedy(detector, digits):
    images, ebm = digits.test[:3], detector.ebm_
    assert "not fitted" in error_of(AnomalyDetector(ebm).p_value, images)
    assert "at least 80" in error_of(AnomalyDetector(ebm).fit, images)
    headless = EBM(replace(GREY, stein_head=False, prediction="normalised"))
    assert "Anomaly detection needs" in error_of(AnomalyDetector(headless).fit, images)
    rare = AnomalyDetector(ebm, 0.005).load("digits")
    assert "at least 199 images" in error_of(rare.predict, images)
