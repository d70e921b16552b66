"""Examples, choices and what they empty, and warnings, in a headless Chromium."""

import json

import numpy as np
import pytest
from browsing import (
    TABS,
    WAIT,
    barriers,
    choose_file,
    clipped,
    open_tab,
    picture,
    set_number,
    text_of,
)
from conftest import save_picture

from ebm_app.evaluation.checks import Check, as_record

pytestmark = pytest.mark.browser


def test_an_example_is_scored_and_shown_large(visit):
    page = visit()
    open_tab(page, "Score")
    open_tab(page, "Upload")
    page.locator(".gallery-item").locator("visible=true").first.click()
    uploaded = page.get_by_alt_text("The image that was uploaded")
    uploaded.wait_for(timeout=WAIT)
    page.get_by_role("button", name="Log-likelihood of the image").click()
    text = text_of(page, "Log-likelihood", "^Bits per dim")
    assert "which changed none" in text and "Hint" not in text
    text_of(page, "Place among held-out images", "^Percentile")
    seen = page.get_by_alt_text("The image after resizing and rounding to the levels of the model")
    for image in (uploaded, seen):
        assert image.bounding_box()["width"] >= 220
    picture(page, "score-example")
    page.get_by_role("button", name="What the words mean").click()
    page.get_by_text("what it would cost to store").wait_for(timeout=WAIT)
    page.get_by_label("Invert").check()
    text_of(page, "Log-likelihood", "^$")
    page.get_by_role("button", name="Log-likelihood of the image").click()
    assert "take the tick from Invert" in text_of(page, "Log-likelihood", "^Bits per dim")
    assert barriers(page) == []


def test_a_small_upload_is_shown_large_with_sharp_pixels(visit, tmp_path):
    page = visit()
    open_tab(page, "Score")
    open_tab(page, "Upload")
    small = save_picture(tmp_path / "small.png", np.eye(8) * 255)
    choose_file(page, small)
    uploaded = page.get_by_alt_text("The image that was uploaded")
    picture(page, "small-upload")
    style = uploaded.evaluate("image => ({...getComputedStyle(image)})")
    box = uploaded.bounding_box()
    assert style["objectFit"] in ("fill", "contain") and style["imageRendering"] == "pixelated"
    assert min(box["width"], box["height"]) >= 220


def test_another_choice_leaves_no_result_of_the_old(visit):
    page = visit()
    open_tab(page, "Mutual information")
    open_tab(page, "Your data")
    set_number(page, "Rows to draw", 200)
    set_number(page, "Steps at most", 5)

    def draw():
        page.get_by_role("button", name="Draw X and Y").click()

    def estimate(pattern):
        page.get_by_role("button", name="Estimate", exact=True).locator("visible=true").click()
        return text_of(page, "Estimate", pattern)

    draw()
    text_of(page, "True value of what was drawn", "normal_1x1: 0.4133")
    page.get_by_text("normal_1x1_y").locator("visible=true").first.wait_for(timeout=WAIT)
    assert "normal_1x1_x.npy and normal_1x1_y.npy" in estimate("mutual information ")
    draw()  # the same task: other files
    text_of(page, "Estimate", "^$")
    set_number(page, "Steps at most", 2000)
    estimate("^(Starting|Step)")
    draw()  # ends the run, which must not fill the box again
    text_of(page, "Estimate", "^$")
    page.wait_for_timeout(3000)
    assert text_of(page, "Estimate", "") == ""
    assert page.locator('[data-testid="matplotlib"]:visible').count() == 0


def test_another_toy_method_ends_the_run_of_the_first(visit):
    page = visit()
    open_tab(page, "Toy")
    page.get_by_role("button", name="Train", exact=True).locator("visible=true").click()
    text_of(page, "Run", "^Step")
    page.get_by_label("Method", exact=True).locator("visible=true").click()
    page.get_by_role("option", name="NCE, one classifier").locator("visible=true").click()
    text_of(page, "Run", "^$")
    page.wait_for_timeout(3000)  # nothing comes of the run that was ended
    assert text_of(page, "Run", "") == ""


def test_the_model_is_chosen_where_it_is_used_and_stays_chosen(visit):
    page = visit()
    model = page.get_by_label("Model", exact=True)
    model.click()
    page.get_by_role("option", name="colour").click()
    for tab, is_used in zip(TABS, (True, True, False, False, True), strict=True):
        open_tab(page, tab)
        model.wait_for(state="visible" if is_used else "hidden", timeout=WAIT)
    page.get_by_role("cell", name="4 × 8 pixels, RGB, 256 levels").wait_for(timeout=WAIT)


def test_a_failed_self_test_and_a_description_are_shown(visit, folder):
    words = "quadrature against pf_ode", "of few: python evaluate/selftest.py"
    check = Check(words[0], -1.0, 0.1, 0.1, "bits per dim", False, words[1])
    time_score = {"shares": [0.5], "mean": [0.1], "stderr": [0.1]}
    figures = {"checks": [as_record(check)], "mean_time_score": time_score}
    record = {"started": "2025-01-01T00:00:00Z", "figures": figures}
    files = folder / "grey" / "selftest.json", folder / "grey" / "README.md"
    files[0].write_text(json.dumps(record))
    files[1].write_text('# On digits\n<img src=x onerror="window.bad = 1">\n\n- a **bold** item\n')
    try:
        page = visit()
        line = page.get_by_text("grey failed 1 of the checks of its self-test")
        line.wait_for(timeout=WAIT)
        for tab, is_used in zip(TABS, (True, True, False, False, True), strict=True):
            open_tab(page, tab)
            line.wait_for(state="visible" if is_used else "hidden", timeout=WAIT)
        text_of(
            page,
            "Result of the self-test",
            "^0 of 1 checks passed, failed: quadrature against pf_ode · rec",
        )
        page.get_by_test_id("matplotlib").locator("visible=true").wait_for(timeout=WAIT)
        page.get_by_role("button", name="Description and configuration").click()
        page.get_by_role("heading", name="On digits").wait_for(timeout=WAIT)
        assert page.locator("strong", has_text="bold").is_visible()
        assert page.evaluate("window.bad") is None
        picture(page, "description")
        page.set_viewport_size({"width": 390, "height": 900})
        page.wait_for_timeout(500)
        picture(page, "telephone-description")
        assert clipped(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        for file in files:
            file.unlink()


def test_plots_are_dark_on_a_dark_page(visit):
    page = visit(theme="dark")
    open_tab(page, "Toy")
    plot = page.locator('[data-testid="matplotlib"] img').locator("visible=true").first
    plot.wait_for(timeout=WAIT)
    assert "invert" in plot.evaluate("image => getComputedStyle(image).filter")
