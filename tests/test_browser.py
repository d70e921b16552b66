"""The page in a headless Chromium: what a visitor does, that nothing leaves the machine, and what
a screen reader or a telephone makes of it. Pictures of it are left in runs/browser."""

import re

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
    unfold,
    wait_until,
)

pytestmark = pytest.mark.browser


def test_a_grid_is_drawn(visit):
    page = visit()
    set_number(page, "Steps", 3)
    page.get_by_role("button", name="Generate", exact=True).click()
    text_of(page, "Run", "^16 images · grey · seed")
    grid = page.get_by_alt_text("Grid of the images that were drawn")
    assert grid.evaluate("image => image.naturalWidth % (4 * 9 - 1)") == 0
    assert grid.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    picture(page, "generate")
    assert barriers(page) == []


def test_a_run_is_stopped_and_what_it_drew_stays(visit):
    page = visit()
    set_number(page, "Steps", 200)
    page.get_by_role("button", name="Generate", exact=True).click()
    text_of(page, "Run", "^Step")
    page.get_by_role("button", name="Stop", exact=True).locator("visible=true").click()
    text_of(page, "Run", "^Stopped after step")
    # the last step may have been on its way: text, picture and files of it come together
    archive = page.get_by_role("button", name="Download all (ZIP)")
    page.wait_for_function("button => !button.disabled", arg=archive.element_handle())
    stopped = text_of(page, "Run", "^Stopped after step")
    page.wait_for_timeout(500)
    assert page.get_by_label("Run", exact=True).input_value() == stopped
    assert page.get_by_alt_text("Grid of the images that were drawn").is_visible()


def test_a_drawn_digit_has_a_log_likelihood(visit):
    page = visit()
    open_tab(page, "Score")
    canvas = page.locator("canvas").first
    canvas.wait_for(timeout=WAIT)
    undo = page.get_by_role("button", name="Undo", exact=True)

    def draw():
        box = canvas.bounding_box()
        across, down = box["x"] + box["width"] / 2, box["y"]
        page.mouse.move(across, down + box["height"] * 0.2)
        page.mouse.down()
        page.mouse.move(across, down + box["height"] * 0.8, steps=12)
        page.mouse.up()
        page.wait_for_timeout(500)
        return undo.is_enabled()

    wait_until(page, draw, "no stroke")  # the brush comes after the canvas
    page.get_by_role("button", name="Log-likelihood of the drawing").click()
    text = text_of(page, "Log-likelihood", "^Bits per dim")
    assert re.match(r"Bits per dim: -?\d+\.\d+ ± \d+\.\d+ \(-?[\d.]+ ± [\d.]+ nats\)", text)
    picture(page, "score")
    assert barriers(page) == []


def test_a_bad_file_is_refused_in_a_sentence_and_the_page_goes_on(visit, tmp_path):
    bad = tmp_path / "photo.png"
    bad.write_text("no image")
    page = visit()
    open_tab(page, "Score")
    open_tab(page, "Upload")
    choose_file(page, bad)
    page.get_by_role("button", name="Log-likelihood of the image").click()
    toast = page.get_by_test_id("toast-body")
    toast.wait_for(timeout=WAIT)
    assert "photo.png' as an image" in toast.inner_text()
    assert str(tmp_path) not in toast.inner_text()
    open_tab(page, "Generate")
    set_number(page, "Steps", 1)
    page.get_by_role("button", name="Generate", exact=True).click()
    text_of(page, "Run", "^16 images")


def test_diagnostics_say_what_the_model_is(visit):
    page = visit()
    open_tab(page, "Diagnostics")
    page.get_by_role("cell", name="8 × 8 pixels, grey, 17 levels").wait_for(timeout=WAIT)
    text_of(page, "Training", "No training curves")
    set_number(page, "Chains", 2)
    set_number(page, "Temperatures", 3)
    page.get_by_role("button", name="Estimate log Z").click()
    found = text_of(page, "log Z", "Effective sample size")
    open_tab(page, "Score")
    open_tab(page, "Diagnostics")
    page.wait_for_timeout(1000)  # the card is read again, what was found stays
    assert text_of(page, "log Z", "") == found
    assert page.get_by_test_id("matplotlib").locator("visible=true").count() == 1
    picture(page, "diagnostics")
    assert barriers(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_tab_is_accessible(visit, theme):
    page, found = visit(theme=theme), []
    for tab in TABS:
        open_tab(page, tab)
        page.wait_for_timeout(1000)
        picture(page, f"{theme}-{tab.lower().replace(' ', '-')}")
        found += barriers(page)
    assert found == []


def test_a_telephone_shows_every_tab_whole_without_scrolling_sideways(visit):
    page, found = visit(width=390), {}
    for tab in (*TABS[:2], "Upload", *TABS[2:4], "Your data", "Table", TABS[4]):
        open_tab(page, tab)
        unfold(page)
        page.wait_for_timeout(1000)
        picture(page, f"telephone-{tab.lower().replace(' ', '-')}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
        found[tab] = clipped(page) + barriers(page)
    assert not any(found.values()), found
