"""The Score tab: the log-likelihood of images, and its place among held-out ones."""

import shutil

import numpy as np
import pytest
import torch
from conftest import COLOUR, GREY, call, digit, error_of, save_digit
from PIL import Image

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.data.images import load_images
from ebm_app.data.png import to_uint8
from ebm_app.evaluation import held_out_likelihoods as held
from ebm_app.image_models.ebm import EBM
from ebm_app.io.records import read_json, write_json
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.models.config import EBMConfig
from ebm_app.models.pretrained import fingerprint
from ebm_app.web.models import Models
from ebm_app.web.score import many_images, one_image, uploads
from ebm_app.web.shared import mean_of

pytestmark = pytest.mark.usefixtures("page_files")

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


def test_a_score_is_the_mean_over_draws_with_its_standard_error(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    shown = []
    for step in one_image.score("grey", path, 12, models=models, seed=3):
        with Image.open(step.seen) as seen:
            side = seen.width // 8
            assert np.array_equal(np.asarray(seen)[::side, ::side], to_uint8(digit())[0, ..., 0])
        shown.append(step)
    first, quick, scored, *_, last = shown
    assert first.metrics is None and quick.metrics["repeats"] == 2
    result = models.load("grey").log_prob(digit().expand(12, -1, -1, -1), seed=3)
    values = result.log_prob.numpy()
    mean, error, bits = values.mean(), values.std(ddof=1) / np.sqrt(12), 64 * np.log(2)
    in_bits = one_image.with_error(-mean / bits, error / bits)
    in_nats = one_image.with_error(mean, error)
    assert f"Bits per dim: {in_bits} ({in_nats} nats), by elbo: " in scored.details
    assert "17 levels equally likely, every image would cost 4.09.\n" in scored.details
    assert scored.metrics["log_prob"] == pytest.approx(mean)
    assert scored.metrics["log_prob_error"] == pytest.approx(error) and error > 0
    assert scored.metrics["bits_per_dim"] == pytest.approx(-mean / bits)
    assert "of 40 held-out" in last.details and last.answer.startswith(last.metrics["answer"])
    assert last.histogram.axes[0].lines[0].get_xdata()[0] == pytest.approx(mean)
    *_, drawn = one_image.score_drawing("grey", path, 2, models=models, seed=3)
    assert f"{drawn.metrics['bits_per_dim']:.3f} bits per dim" in drawn.answer


def test_the_answer_says_in_words_whether_an_image_is_ordinary_and_where_it_is_odd():
    found = {"p_value": None, "percentile": 50.0, "class": 7, "oddest": "lower left"}
    for change, words in (
        ({}, "An ordinary 7: more usual than 100 percent of held-out images"),
        ({"p_value": 0.64, "class": None}, "An ordinary image: more usual than 64 percent"),
        ({"p_value": 0.002}, "Odd: p = 0.002, mostly at the lower left"),
        ({"percentile": 0.5, "oddest": None}, "Odd: p = 0.01"),
        ({"p_value": 0.01, "percentile": 100.0}, "Suspiciously simple: "),
        ({"percentile": None}, one_image.COUNTING),
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


def test_the_error_of_a_fixed_quadrature_is_no_smaller_for_more_draws(models):
    ebm = models.load("grey")
    images = digit().expand(8, -1, -1, -1)
    bound = ebm.log_prob(images, seed=3)
    spread = bound.log_prob.std().item() / np.sqrt(8)
    assert mean_of(bound, "elbo", 64).log_prob_error == pytest.approx(spread)
    integral = ebm.log_prob(images, estimator="ratio", seed=3)
    spread = integral.log_prob.std().item() / np.sqrt(8)
    off = integral.error.square().mean().sqrt().item()
    found = mean_of(integral, "ratio", 64)
    assert found.log_prob_error == pytest.approx(np.hypot(spread, off)) and off > 0
    assert found.bits_error == pytest.approx(found.log_prob_error / (64 * np.log(2)))


def test_the_place_of_a_score_is_counted_among_held_out_images(models):
    ebm, images = models.load("grey"), held.held_out_images(GREY, "data")
    assert torch.equal(images, load_images("digits").test[:40])
    steps = list(held.likelihoods(ebm, images))
    assert [(len(step.log_prob), step.complete) for step in steps] == [(32, False), (40, True)]
    values = ebm.log_prob(images, seed=held.SEED).log_prob
    assert torch.allclose(steps[-1].log_prob, values, atol=1e-3)
    value = values.sort().values[10].item()
    assert steps[-1].percentile(value) == 25  # 10 of 40 are below
    said = steps[-1].describe(value, 64)
    assert "Percentile 25: higher than 10 of 40 " in said
    low, high = np.quantile(to_bits_per_dim(steps[-1].log_prob, 64).numpy(), [0.05, 0.95])
    assert f"between {low:.2f} and {high:.2f} bits per dim" in said
    assert "the first 32 of 40" in steps[0].describe(value, 64)
    *_, computed = models.likelihoods("grey")
    assert torch.equal(computed.log_prob, steps[-1].log_prob)
    assert len(list(models.likelihoods("grey"))) == 1  # kept
    *_, shown = one_image.find_likelihood(models, "colour", _prepared(COLOUR), 2, 0)
    assert shown.answer.startswith(one_image.ABSENT)


def _prepared(config):
    return uploads.Prepared(torch.zeros(1, *config.image_shape))


def test_many_files_have_a_row_each(models, tmp_path):
    good = [save_digit(tmp_path / name, index) for index, name in enumerate(("a.png", "b.png"))]
    bad = tmp_path / "bad.png"
    bad.write_text("no image")
    *_, (rows, text) = many_images.score_many("grey", [*good, str(bad)], 4, models=models, seed=3)
    assert text == "2 of 3 files have a log-likelihood"
    result = models.load("grey").log_prob(digit(1).expand(4, -1, -1, -1), seed=3)
    (nats,) = (row[2] for row in rows if row[0] == "b.png")
    assert nats == pytest.approx(result.log_prob.mean().item(), abs=0.01)
    assert rows[0][2] < rows[1][2]  # the oddest first, as far as is known
    assert all(0 <= row[5] <= 100 for row in rows[:2])
    assert rows[2][1:6] == [None] * 5 and "cannot read 'bad.png'" in rows[2][6]
    for files, message in (([], "there are no files"), (good * 51, "102 files are more than 100")):
        run = many_images.score_many("grey", files, 4, models=models, seed=3)
        assert message in error_of(lambda run: list(run), run)


def test_likelihoods_of_a_record_are_used_for_its_weights_only(folder, tmp_path, monkeypatch):
    copy = shutil.copytree(folder / "grey", tmp_path / "run")
    ebm, models = EBM.from_pretrained(copy), Models({"run": copy})
    values = torch.linspace(-90, -51, 40, dtype=torch.float64) + 0.001
    held.write_held_out(copy, ebm, values, load_images("digits").test)
    record = read_json(copy / "held_out.json")
    assert len(held.examples(copy, "data")) == 10
    with monkeypatch.context() as patch:
        patch.setattr(EBM, "log_prob", None)  # nothing is computed
        (found,) = models.likelihoods("run")
    assert found.complete and found.log_prob.tolist() == [-90.0 + i for i in range(40)]
    expected = ebm.log_prob(load_images("digits").test[:40], seed=held.SEED).log_prob
    for change in ({"weights": "other"}, {"estimator": "ratio"}, {"eps": 0.1}):
        write_json(copy / "held_out.json", {**record, **change})
        *_, last = models.likelihoods("run")
        assert torch.allclose(last.log_prob, expected, atol=1e-3)
    write_json(copy / "held_out.json", {**record, "log_prob": [1.0, "2"]})
    said = error_of(lambda: list(models.likelihoods("run")))
    assert said.startswith("run/held_out.json is damaged") and str(tmp_path) not in said


def test_the_script_writes_what_the_page_reads(script, folder, tmp_path):
    tool = script("evaluate/held_out.py")
    copy = shutil.copytree(folder / "grey", tmp_path / "run")
    assert call(tool, copy, "--output_dir", copy, "--device", "cpu") == 0
    ebm = EBM.from_pretrained(copy)
    found = held.read_likelihoods(copy, ebm, fingerprint(ebm))
    *_, computed = held.likelihoods(ebm, held.held_out_images(ebm.config, "data"))
    assert torch.allclose(found.log_prob, computed.log_prob, atol=0.0051)
