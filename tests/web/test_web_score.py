"""Score tab: anomaly detection and likelihood of an image."""

import shutil

import gradio as gr
import numpy as np
import pytest
from conftest import digit, pixels, save_digit
from PIL import Image

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.data.images import load_images
from ebm_app.data.pictures import to_uint8
from ebm_app.web import score
from ebm_app.web.models import Models

pytestmark = pytest.mark.usefixtures("page_files")


def test_likelihood_is_the_mean_over_draws(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    first, answered, last = score.score("grey", path, 12, models=models, seed=3)
    side = first.seen.width // 8
    assert np.array_equal(pixels(first.seen)[::side, ::side], to_uint8(digit())[0, ..., 0])
    assert first.metrics is None and answered.answer and answered.where is not None
    result = models.load("grey").likelihood(digit().expand(12, -1, -1, -1), seed=3)
    values = result.log_prob.numpy()
    mean, error, bits = values.mean(), values.std(ddof=1) / np.sqrt(12), 64 * np.log(2)
    assert f"{-mean / bits:.3f} ± {error / bits:.3f} bits per dim" in last.answer
    assert last.metrics["log_prob"] == pytest.approx(mean)
    assert last.metrics["log_prob_error"] == pytest.approx(error) and error > 0
    assert last.metrics["bits_per_dim"] == pytest.approx(-mean / bits)
    assert last.answer.startswith(answered.answer)
    *_, drawn = score.score_drawing("grey", path, 2, models=models, seed=3)
    assert f"{drawn.metrics['bits_per_dim']:.3f}" in drawn.answer


def test_answer_states_the_result_of_the_detector():
    metrics = {"p_value": 0.64, "percentile": 100.0, "class": 7, "most_unusual": "lower left"}
    for change, words in (
        ({}, "Ordinary 7: more usual than 64 percent of held-out images"),
        ({"class": None}, "Ordinary image: "),
        ({"p_value": 0.002, "percentile": 3.0}, "Unusual: p = 0.002, mostly at the lower left"),
        ({"p_value": 0.04}, "Unusually simple: "),
        ({"p_value": None}, score.NO_DETECTOR),
    ):
        assert score.answer_of(metrics | change).startswith(words)
    excess = np.zeros((9, 9))
    for row, column, place in ((0, 8, "upper right"), (4, 0, "left"), (4, 4, "middle")):
        excess[row, column] = excess.max() + 1
        assert score.place_of(excess) == place


def test_fitted_detector_gives_p_value_and_map(folder, tmp_path):
    copy = shutil.copytree(folder / "grey", tmp_path / "run")
    AnomalyDetector(copy).fit(load_images("digits").test[:120]).save(copy)
    models = Models({"run": copy}, data_root="nowhere")
    assert models.detector("run") is models.detector("run")
    path = save_digit(tmp_path / "digit.png")
    *_, last = score.score("run", path, 2, models=models, seed=3)
    expected = AnomalyDetector(copy).p_value(digit())
    assert last.metrics["p_value"] == pytest.approx(expected[0])
    shown, nearest = (axes.images[0].get_array() for axes in last.where.axes[:2])
    assert np.array_equal(shown, digit()[0, 0])
    assert np.array_equal(nearest, digit()[0, 0])  # the detector was fitted to this image


def test_class_probabilities_are_shown_for_labelled_models(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    *_, last = score.score("labelled", path, 2, models=models, seed=0)
    assert set(last.classes) == {"0", "1", "2"}
    assert sum(last.classes.values()) == pytest.approx(1)
    assert last.classes[str(last.metrics["class"])] == max(last.classes.values())
    *_, last = score.score("grey", path, 2, models=models, seed=0)
    assert last.classes is None


def test_quadrature_error_does_not_shrink_with_draws(models):
    ebm = models.load("grey")
    images = digit().expand(8, -1, -1, -1)
    bound = ebm.likelihood(images, seed=3)
    spread = bound.log_prob.std().item() / np.sqrt(8)
    assert score.mean_likelihood(bound, "elbo", 64)["log_prob_error"] == pytest.approx(spread)
    integral = ebm.likelihood(images, estimator="time_integral", seed=3)
    spread = integral.log_prob.std().item() / np.sqrt(8)
    numerical = integral.error.square().mean().sqrt().item()
    found = score.mean_likelihood(integral, "time_integral", 64)
    assert found["log_prob_error"] == pytest.approx(np.hypot(spread, numerical)) and numerical > 0
    assert found["bits_error"] == pytest.approx(found["log_prob_error"] / (64 * np.log(2)))


def test_generated_image_is_uploaded_without_loss(page):
    images = [block for block in page.blocks.values() if isinstance(block, gr.Image)]
    (upload,) = (image for image in images if image.alt_text == "The uploaded image")
    sent = np.random.RandomState(0).randint(0, 256, (8, 8)).astype(np.uint8)
    assert np.array_equal(pixels(upload.postprocess(Image.fromarray(sent)).path), sent)
