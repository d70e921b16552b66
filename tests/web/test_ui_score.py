"""The Score tab: whether images are ordinary, and their log-likelihoods."""

import shutil

import numpy as np
import pytest
import torch
from conftest import digit, error_of, save_digit
from PIL import Image

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.data.images import load_images
from ebm_app.data.pictures import to_uint8
from ebm_app.folders import BUNDLED
from ebm_app.web.models import Models
from ebm_app.web.score import many_images, one_image, uploads
from ebm_app.web.shared import mean_of

pytestmark = pytest.mark.usefixtures("page_files")


def test_a_score_is_the_mean_over_draws_with_its_standard_error(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    shown = []
    for step in one_image.score("grey", path, 12, models=models, seed=3):
        with Image.open(step.seen) as seen:
            side = seen.width // 8
            assert np.array_equal(np.asarray(seen)[::side, ::side], to_uint8(digit())[0, ..., 0])
        shown.append(step)
    first, quick, last = shown
    assert first.metrics is None and quick.metrics["repeats"] == 2
    result = models.load("grey").likelihood(digit().expand(12, -1, -1, -1), seed=3)
    values = result.log_prob.numpy()
    mean, error, bits = values.mean(), values.std(ddof=1) / np.sqrt(12), 64 * np.log(2)
    assert f"Bits per dim: {-mean / bits:.3f} ± {error / bits:.3f} (" in last.details
    assert "17 levels equally likely, every image would cost 4.09.\n" in last.details
    found = last.metrics
    assert found["log_prob"] == pytest.approx(mean)
    assert found["log_prob_error"] == pytest.approx(error) and error > 0
    assert found["bits_per_dim"] == pytest.approx(-mean / bits)
    assert last.answer.startswith(found["answer"])
    *_, drawn = one_image.score_drawing("grey", path, 2, models=models, seed=3)
    assert f"{drawn.metrics['bits_per_dim']:.3f} bits per dim" in drawn.answer


def test_the_answer_says_in_words_whether_an_image_is_ordinary_and_where_it_is_odd():
    found = {"p_value": 0.64, "percentile": 100.0, "class": 7, "oddest": "lower left"}
    for change, words in (
        ({}, "An ordinary 7: more usual than 64 percent of held-out images"),
        ({"class": None}, "An ordinary image: more usual than 64 percent"),
        ({"p_value": 0.002, "percentile": 3.0}, "Odd: p = 0.002, mostly at the lower left"),
        ({"p_value": 0.04}, "Suspiciously simple: "),
        ({"p_value": None}, one_image.ABSENT),
    ):
        assert one_image.in_words(found | change).startswith(words)
    excess = np.zeros((9, 9))
    for row, column, place in ((0, 8, "upper right"), (4, 0, "left"), (4, 4, "middle")):
        excess[row, column] = excess.max() + 1
        assert one_image.place_of(excess) == place


def test_a_fitted_detector_says_where_an_image_is_odd(folder, tmp_path):
    copy = shutil.copytree(folder / "grey", tmp_path / "run")
    AnomalyDetector(copy).fit(load_images("digits").test[:120]).save(copy)
    models = Models({"run": copy}, data_root="nowhere")
    assert models.detector("run") is models.detector("run")
    path = save_digit(tmp_path / "digit.png")
    *_, last = one_image.score("run", path, 2, models=models, seed=3)
    expected = AnomalyDetector(copy).p_value(digit())
    assert last.metrics["p_value"] == pytest.approx(expected[0])
    assert np.array_equal(last.where.axes[0].images[0].get_array(), digit()[0, 0])
    nearest = last.where.axes[1].images[0].get_array()  # the image itself was fitted
    assert np.array_equal(nearest, digit()[0, 0]) and len(last.compared[2]) == 3


def test_the_error_of_a_fixed_quadrature_is_no_smaller_for_more_draws(models):
    ebm = models.load("grey")
    images = digit().expand(8, -1, -1, -1)
    bound = ebm.likelihood(images, seed=3)
    spread = bound.log_prob.std().item() / np.sqrt(8)
    assert mean_of(bound, "elbo", 64)["log_prob_error"] == pytest.approx(spread)
    integral = ebm.likelihood(images, estimator="ratio", seed=3)
    spread = integral.log_prob.std().item() / np.sqrt(8)
    off = integral.error.square().mean().sqrt().item()
    found = mean_of(integral, "ratio", 64)
    assert found["log_prob_error"] == pytest.approx(np.hypot(spread, off)) and off > 0
    assert found["bits_error"] == pytest.approx(found["log_prob_error"] / (64 * np.log(2)))


def test_many_files_have_a_row_each(models, tmp_path):
    good = [save_digit(tmp_path / name, index) for index, name in enumerate(("a.png", "b.png"))]
    bad = tmp_path / "bad.png"
    bad.write_text("no image")
    *_, (rows, text) = many_images.score_many("grey", [*good, str(bad)], 4, models=models, seed=3)
    assert text.startswith("2 of 3 files have a log-likelihood, 0 are odd")
    result = models.load("grey").likelihood(digit(1).expand(4, -1, -1, -1), seed=3)
    (nats,) = (row[2] for row in rows if row[0] == "b.png")
    assert nats == pytest.approx(result.log_prob.mean().item(), abs=0.01)
    assert rows[0][1] <= rows[1][1]  # the oddest first
    assert rows[2][1:5] == [None] * 4 and "cannot read 'bad.png'" in rows[2][5]
    assert [row[6] for row in rows] == ["no", "no", None]
    assert "1 are odd" in many_images.flag([["a", 0.01, *[0] * 4, None]], 0.05)
    for files, message in (([], "there are no files"), (good * 51, "102 files are more than 100")):
        run = many_images.score_many("grey", files, 4, models=models, seed=3)
        assert message in error_of(lambda run: list(run), run)


@pytest.mark.process
def test_an_energy_answers_first_by_one_pass(page_files):
    energy = Models({"energy": BUNDLED / "digits-energy"})
    black = uploads.Prepared(torch.zeros(1, 1, 8, 8))
    shown = one_image.find_likelihood(energy, "energy", black, 2, 0)
    _, first, last = (step.metrics for step in shown)
    assert (first["estimator"], first["nfe"]) == ("energy", 1) and last["estimator"] == "elbo"
