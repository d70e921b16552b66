"""The Score tab: log-likelihoods of an image and of many, and what they are compared with."""

import csv
import json
from functools import partial
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import torch
from conftest import (
    GREY,
    bad_files,
    digit,
    error_of,
    save_digit,
    save_picture,
    write_mnist,
)
from PIL import Image

from ebm_app.data.images import load_images
from ebm_app.data.png import to_uint8
from ebm_app.evaluation.plots import plot_place, plot_shares
from ebm_app.io.errors import UserError
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.likelihood.dequantisation import TruncatedNormal, dequantisation_noise
from ebm_app.models.config import EBMConfig
from ebm_app.web import buttons
from ebm_app.web.score import estimators, many_images, one_image, report, uploads
from ebm_app.web.score import held_out as held
from ebm_app.web.score.numbers import with_error

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


@pytest.fixture(scope="module")
def held_out():
    return held.HeldOutImages()


def run(models, path, held_out, repeats=12):
    source = partial(uploads.read_upload, path)
    return list(one_image.find_likelihood(models.load, "grey", source, repeats, held_out, seed=3))


def test_a_score_is_the_mean_over_draws_with_its_standard_error(models, held_out, tmp_path):
    first, scored, *rest = run(models, save_digit(tmp_path / "digit.png"), held_out)
    assert first == one_image.ShownLikelihood(first.seen, one_image.RUNNING)
    side = first.seen.width // 8
    assert np.array_equal(np.asarray(first.seen)[::side, ::side], to_uint8(digit())[0, ..., 0])
    result = models.load("grey").log_prob(digit().expand(12, -1, -1, -1), seed=3)
    values = result.log_prob.numpy()
    assert values.std() > 0
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(12)
    bits = 64 * np.log(2)
    in_bits, in_nats = with_error(-mean / bits, error / bits), with_error(mean, error)
    lead = f"Bits per dim: {in_bits} ({in_nats} nats), by the variational bound (elbo)\n"
    assert scored.text.startswith(lead) and "normalised" not in lead
    assert "17 levels equally likely, every image would cost 4.09.\n" in scored.text
    assert "elbo: a lower bound on the log density" in scored.text
    assert "12 draws of the noise of dequantisation and of the estimator" in scored.text
    assert "64 evaluations of the network, up to eps 0.0001" in scored.text
    assert report.CAVEAT in scored.text
    assert scored.metrics["log_prob"] == pytest.approx(mean)
    assert scored.metrics["log_prob_error"] == pytest.approx(error)
    assert scored.metrics["bits_per_dim"] == pytest.approx(-mean / bits)
    assert scored.metrics["estimator"] == "elbo" and scored.metrics["normalised"]
    (image,) = scored.shares.axes[0].images
    assert np.allclose(image.get_array(), result.components.mean((0, 1)))
    assert scored.place == one_image.WAITING and scored.histogram is None  # does not wait for it
    assert all(step.text == scored.text for step in rest)
    assert "of 40 held-out" in rest[-1].place
    line = rest[-1].histogram.axes[0].lines[0]
    assert line.get_xdata()[0] == pytest.approx(mean)


def test_the_place_of_a_score_is_counted_among_held_out_images(models):
    ebm, held_out = models.load("grey"), held.HeldOutImages()
    images = held.HeldOutImages().images(GREY)
    assert torch.equal(images, load_images("digits").test[:40])
    steps = list(held_out.likelihoods(ebm, "grey"))
    assert [(len(s.log_prob), s.total, s.complete) for s in steps] == [
        (32, 40, False),
        (40, 40, True),
    ]
    values = ebm.log_prob(images, seed=held.SEED).log_prob
    assert torch.allclose(steps[-1].log_prob, values, atol=1e-3)
    value = values.sort().values[10].item()
    assert held.percentile(value, steps[-1]) == 25  # 10 of 40 are below
    said = held.describe(value, steps[-1], 64)
    assert "Percentile 25: higher than 10 of 40 " in said
    low, high = np.quantile(to_bits_per_dim(steps[-1].log_prob, 64).numpy(), [0.05, 0.95])
    assert f"Nine in ten of those cost between {low:.2f} and {high:.2f} bits per dim." in said
    assert "of the first 32 of 40 " in held.describe(value, steps[0], 64)


def test_held_out_images_are_computed_once_for_the_same_weights(models, monkeypatch):
    ebm, held_out = models.load("grey"), held.HeldOutImages()
    asked = []
    score = ebm.log_prob
    monkeypatch.setattr(
        ebm, "log_prob", lambda x, **more: asked.append(len(x)) or score(x, **more)
    )
    run = held_out.likelihoods(ebm, "grey")
    next(run)
    run.close()  # as Stop does
    list(held_out.likelihoods(ebm, "grey"))
    (again,) = held_out.likelihoods(ebm, "grey")
    assert asked == [32, 8] and again.complete
    before = held.fingerprint(ebm)
    weight = ebm.model.net.unet.conv_out.weight
    with torch.no_grad():
        weight[0, 0, 0, 0] += 1
        assert held.fingerprint(ebm) != before
        weight[0, 0, 0, 0] -= 1


def test_without_held_out_images_a_sentence_stands_for_the_histogram(models, tmp_path):
    path = save_picture(tmp_path / "colour.png", np.zeros((4, 8, 3)))
    source = partial(uploads.read_upload, path)
    *_, last = one_image.find_likelihood(models.load, "colour", source, 2, held.HeldOutImages())
    assert last.place == held.ABSENT and last.histogram is None
    assert last.text.startswith("Bits per dim: ") and last.shares is not None
    find = held.HeldOutImages(str(tmp_path / "empty")).images
    assert find(MNIST) is None  # its files are not there
    write_mnist(tmp_path / "MNIST" / "raw")
    assert held.HeldOutImages(str(tmp_path)).images(MNIST).shape == (12, 1, 28, 28)
    assert find(EBMConfig("digits", (1, 16, 16), 17)) is None
    assert find(EBMConfig("digits", (1, 8, 8), 256)) is None


def test_stopping_says_what_there_is():
    scoring = one_image
    assert scoring.stopped(one_image.RUNNING, "") == (scoring.STOPPED, "")
    assert scoring.stopped("Log-likelihood: 1", scoring.WAITING) == ("Log-likelihood: 1", "")
    assert scoring.stopped("Log-likelihood: 1", "Percentile 3") == (
        "Log-likelihood: 1",
        "Percentile 3",
    )
    assert estimators.stopped("4 draws · running ode") == "4 draws · stopped before ode"
    assert buttons.stopped("Step 1 of 2 files") == "Stopped after step 1 of 2 files"


def test_another_choice_ends_a_run_before_its_results_are_emptied():
    with gr.Blocks() as page:
        choice, text, image = gr.Textbox(), gr.Textbox(), gr.Image()
        table = gr.Dataframe(headers=["a", "b"])
        event = gr.Button().click(lambda: ("", None, None), None, [text, image, table])
        buttons.empty_by([choice.change], [event], [text, image, table])
    run, *others = page.fns.values()
    kinds = [(bool(fn.cancels), bool(fn.js)) for fn in others]
    assert others[kinds.index((True, False))].cancels == [run._id]
    assert kinds.index((True, False)) < kinds.index((False, True))
    blanks = json.loads(others[kinds.index((False, True))].js.removeprefix("() => "))
    assert blanks[:2] == ["", None] and blanks[2]["headers"] == ["a", "b"]
    assert not any(cell for row in blanks[2]["data"] for cell in row)


def test_an_image_far_beyond_the_others_is_pointed_at():
    values = torch.linspace(-80, -60, 50, dtype=torch.float64)
    (axes,) = plot_place(values, -65.0).axes
    assert axes.lines[0].get_xdata()[0] == -65 and not axes.texts
    for value, edge in ((-2000.0, 0), (500.0, 1)):
        (axes,) = plot_place(values, value).axes
        assert not axes.lines and -90 < axes.get_xlim()[0] and axes.get_xlim()[1] < -50
        (note,) = axes.texts
        assert note.get_text() == f"this image, {value:.1f}" and note.xy[0] == edge


def test_the_map_of_shares_sums_channels_and_carries_numbers_where_they_fit():
    components = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0)).double()
    axes = plot_shares(components).axes[0]
    assert np.allclose(axes.images[0].get_array(), components.sum(0))
    assert [text.get_text() for text in axes.texts] == [
        f"{share:z.1f}" for share in components.sum(0).flatten().tolist()
    ]
    assert axes.get_xlabel() == f"sum: {components.sum():.1f} nats"
    norm = axes.images[0].norm
    assert norm(components.sum(0).mean().item()) == pytest.approx(0.5)
    assert not plot_shares(torch.zeros(1, 28, 28)).axes[0].texts


def test_estimators_stand_side_by_side_on_the_same_draws(models, tmp_path, monkeypatch):
    choice = estimators.estimators(GREY)
    assert list(choice) == [*ESTIMATORS, "truncated_normal"]
    assert "pf_ode_exact" not in estimators.estimators(MNIST)

    def refuse(energy, x, t):
        raise UserError("the model has no such thing: take another")

    bad = {"estimator": refuse}
    rows = {"bad": bad, **{name: choice[name] for name in ("elbo", "truncated_normal")}}
    monkeypatch.setattr(estimators, "estimators", lambda config: rows)
    path = save_digit(tmp_path / "digit.png")
    steps = list(estimators.compare(models.load, "grey", path, 3, seed=5))
    assert [len(table) for table, _ in steps] == [0, 0, 1, 2]
    assert "running elbo" in steps[1][1]
    table, text = steps[-1]
    assert (
        text == "2 estimators · 3 draws · without bad: the model has no such thing: take another"
    )
    ebm = models.load("grey")
    levels = (digit() * 16).byte().expand(3, -1, -1, -1)
    noise = dequantisation_noise(1, levels, 5)
    for name, cells in zip(("elbo", "truncated_normal"), table, strict=True):
        dequantiser = None if name == "elbo" else TruncatedNormal()
        result = ebm.log_prob(levels, dequantiser=dequantiser, noise=noise, seed=5)
        mean = result.log_prob.mean()
        error = result.log_prob.std() / np.sqrt(3)
        bits = to_bits_per_dim(mean, 64).item()
        assert cells[:3] == [name, round(mean.item(), 2), round(error.item(), 2)]
        assert cells[3] == round(bits, 4) and cells[5] == result.nfe and len(cells) == 7
    assert table[0][1] != table[1][1]
    assert "draw or upload one first" in error_of(
        lambda: list(estimators.compare(models.load, "grey", None, 3))
    )


def test_one_bad_file_does_not_lose_the_others(models, held_out, tmp_path):
    bad = bad_files(tmp_path)
    good = [save_digit(tmp_path / f"{start}digit.png", i) for i, start in enumerate("=+-@")]
    paths = [good[0], *(str(tmp_path / name) for name in bad), *good[1:]]
    steps = []
    for rows, sheet, text in many_images.find_likelihoods(
        models.load, "grey", paths, 4, held_out, 3
    ):
        with open(sheet, newline="", encoding="utf-8") as file:
            steps.append((rows, list(csv.reader(file)), text))
    rows, (heads, *cells), text = steps[-1]
    assert text == f"4 of {len(paths)} files have a log-likelihood" and not Path(sheet).exists()
    assert [row[0] for row in rows] == [Path(path).name for path in paths]
    assert [len(table) for table, _, _ in steps[: len(paths)]] == list(range(1, len(paths) + 1))
    for row, (name, message) in zip(rows[1:], bad.items(), strict=False):
        assert row[1:5] == [None] * 4 and row[5].startswith(message), name
    ebm = models.load("grey")
    *_, scores = held_out.likelihoods(ebm, "grey")
    for index, row in enumerate([rows[0], *rows[-3:]]):
        result = ebm.log_prob(digit(index).expand(4, -1, -1, -1), seed=3)
        mean = result.log_prob.mean().item()
        assert row[1] == round(mean, 2)
        assert row[2] == round(result.log_prob.std().item() / 2, 2)
        assert row[3] == round(result.bits_per_dim.mean().item(), 4)
        assert row[4] == round(100 * (scores.log_prob < row[1]).double().mean().item())
        assert row[5] == ""
        assert row[6].startswith("Done to the image: resized from 80x80 to 8x8 pixels, which")
    assert heads == many_images.HEADERS
    names = [f"'{start}digit.png" for start in "=+-@"]  # text, never a formula
    assert [row[0] for row in (cells[0], *cells[-3:])] == names
    assert [row[1] for row in cells] == ["" if row[1] is None else str(row[1]) for row in rows]


def test_many_files_are_prepared_as_one_is(models, held_out, tmp_path):
    light = np.asarray(Image.open(save_digit(tmp_path / "light.png")))
    dark = save_picture(tmp_path / "dark.png", 255 - light)
    read = partial(uploads.read_upload, invert=True, frame=True)
    *_, (rows, _, _) = many_images.find_likelihoods(
        models.load, "grey", [dark], 12, held_out, 3, read
    )
    source = partial(read, dark)
    _, shown, *_ = one_image.find_likelihood(models.load, "grey", source, 12, held_out, seed=3)
    assert rows[0][1] == round(shown.metrics["log_prob"], 2)
    assert rows[0][6].startswith("Done to the image: inverted, digit of ")
    assert rows[0][6] == " ".join(shown.metrics["changes"])


def test_no_files_and_too_many_are_refused(models, held_out):
    def refusal(paths):
        return error_of(
            lambda: list(many_images.find_likelihoods(models.load, "grey", paths, 4, held_out))
        )

    assert "there are no files" in refusal(None) and "there are no files" in refusal([])
    assert refusal(["a.png"] * 101).startswith("101 files are more than 100: ")
