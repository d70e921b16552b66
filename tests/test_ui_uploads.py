"""Drawings and files of a visitor become images on the grid of a model's levels."""

import numpy as np
import pytest
import torch
from conftest import COLOUR, GREY, bad_files, digit, error_of, save_digit, save_picture

from ebm_app.data.images import load_images
from ebm_app.data.png import to_uint8
from ebm_app.models.config import EBMConfig
from ebm_app.web.score import canvas, uploads
from ebm_app.web.score import tab as score

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


def drawing(ink: np.ndarray | None) -> dict:
    return {"background": None, "layers": [], "composite": ink}


def strokes(*boxes: tuple[int, int, int, int]) -> dict:
    """A drawing of filled boxes (top, bottom, left, right)."""
    ink = np.zeros((280, 280), dtype=np.uint8)
    for top, bottom, left, right in boxes:
        ink[top:bottom, left:right] = 255
    return drawing(ink)


def test_preprocessing_crops_averages_areas_and_takes_the_nearest_level(tmp_path):
    preprocess = uploads.preprocess
    assert torch.equal(preprocess(save_digit(tmp_path / "digit.png"), GREY), digit())
    numbers = np.random.RandomState(0)
    pixels = numbers.randint(0, 256, (32, 48))  # 8 columns on either side are cut off
    mean = pixels[:, 8:40].reshape(8, 4, 8, 4).mean((1, 3))
    seen = preprocess(save_picture(tmp_path / "wide.png", pixels), GREY)
    assert seen.shape == (1, 1, 8, 8)
    levels = seen[0, 0] * 16
    assert torch.equal(levels, levels.round())
    assert np.abs(levels.numpy() - mean / 255 * 16).max() < 0.5 + 16 / 255
    colour = numbers.randint(0, 256, (8, 16, 3))
    seen = preprocess(save_picture(tmp_path / "colour.png", colour), COLOUR)
    mean = colour.reshape(4, 2, 8, 2, 3).mean((1, 3))
    assert seen.shape == (1, 3, 4, 8)
    assert np.abs(to_uint8(seen)[0] - mean).max() <= 1
    grey = preprocess(save_picture(tmp_path / "grey.png", pixels[:, :8]), COLOUR)
    assert torch.equal(grey[:, :1].expand(-1, 3, -1, -1), grey)


def test_every_bad_file_is_explained_in_a_sentence_without_paths(tmp_path):
    for name, message in bad_files(tmp_path).items():
        said = error_of(uploads.preprocess, tmp_path / name, GREY)
        assert said.startswith(message) and str(tmp_path) not in said
    assert "there is no image" in error_of(uploads.preprocess, None, GREY)
    two = EBMConfig("folder:pairs", (2, 8, 8), 256)
    assert "2 channels" in error_of(uploads.preprocess, tmp_path / "whole.png", two)
    assert "at least 2 repeats" in error_of(uploads.repeated, digit(), 1)
    opaque = np.full((8, 8, 4), 255)
    assert uploads.preprocess(save_picture(tmp_path / "opaque.png", opaque), GREY).eq(1).all()


def test_a_drawn_digit_fills_the_frame_as_the_digits_of_the_data_do():
    prepare = canvas.prepare
    seen = prepare(strokes((100, 180, 30, 60)), GREY)[0, 0]  # a small bar, off the middle
    assert torch.equal(seen, prepare(strokes((20, 260, 190, 280)), GREY)[0, 0])  # nor its size
    bar = torch.zeros(8)
    bar[2:6] = torch.tensor([0.5, 1, 1, 0.5])  # 30 / 80 of 8 columns, in the middle
    assert torch.equal(seen, bar.expand(8, 8))
    wide = prepare(strokes((100, 140, 20, 260)), GREY)[0, 0]
    assert torch.equal(wide.sum(0), torch.tensor([0.0, 8, 8, 8, 8, 8, 8, 0]))
    inked = load_images("digits").train[:, 0].float()
    assert (inked[:, [0, 7]].amax(2) >= 2).all()  # every digit reaches the first and last row
    assert (inked.sum((0, 1)) / inked.sum())[[0, 7]].sum() < 0.01


def test_a_drawing_for_mnist_has_its_box_and_centre_of_mass():
    seen = canvas.prepare(strokes((10, 150, 5, 40), (115, 150, 40, 110)), MNIST)[0, 0]
    inked = seen > 0  # on up to one more row and column, as the box need not begin with a pixel
    rows, columns = inked.any(1).nonzero()[:, 0], inked.any(0).nonzero()[:, 0]
    assert len(rows) in (20, 21) and len(columns) in (15, 16)
    assert seen.sum() == pytest.approx((140 * 35 + 35 * 70) * (20 / 140) ** 2, rel=0.02)
    places = torch.arange(28) + 0.5
    for axis in (0, 1):
        profile = seen.sum(axis)
        assert abs((profile * places).sum() / profile.sum() - 14) < 0.1
    fashion = EBMConfig("fashion_mnist", (1, 28, 28), 256)  # not digits: stays where it was drawn
    seen = canvas.prepare(strokes((10, 150, 0, 40)), fashion)[0, 0]
    assert seen[1:15, :4].eq(1).all() and seen.sum() == 14 * 4


def test_what_cannot_be_drawn_is_explained(models):
    for empty in (None, drawing(None), strokes()):
        assert "the canvas is empty" in error_of(canvas.prepare, empty, GREY)
    assert error_of(canvas.prepare, strokes((0, 9, 0, 9)), COLOUR) == canvas.NO_COLOUR
    shown = [score.drawing_offer(models.load, name) for name in ("grey", "colour", "none")]
    visible = [(canvas["visible"], reason["visible"]) for canvas, reason in shown]
    assert visible == [(True, False), (False, True), (True, False)]
