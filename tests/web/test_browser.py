"""The page in a headless Chromium: what a visitor does, that nothing leaves the machine, and what
a screen reader or a telephone makes of it."""

import re
import time

import pytest
from browsing import (
    TABS,
    WAIT,
    barriers,
    clipped,
    draw,
    open_tab,
    press,
    set_number,
    text_of,
    unfold,
)

from ebm_app.ebm import EBM

pytestmark = pytest.mark.browser
STEP = 4  # seconds
#: whether nothing lies over the upper corners of a picture, which is smaller than its frame
BARE = """image => {
  image.scrollIntoView({block: "center"});
  const frame = image.getBoundingClientRect();
  const scale = Math.min(frame.width / image.naturalWidth, frame.height / image.naturalHeight);
  const [across, down] = [scale * image.naturalWidth / 2 - 4, scale * image.naturalHeight / 2 - 4];
  return [-across, across].every((x) => document.elementFromPoint(
    frame.x + frame.width / 2 + x, frame.y + frame.height / 2 - down) === image);
}"""


def seconds_until(page, label, pattern):
    begin = time.monotonic()
    text_of(page, label, pattern)
    return time.monotonic() - begin


@pytest.mark.parametrize("width", [1280, 390])
def test_images_are_drawn_and_sent_to_score(visit, width):
    page = visit(width=width)
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    page.get_by_label("New seed for every run").uncheck()
    press(page, "Generate")
    text_of(page, "Run", "^3 images")
    grid = page.get_by_alt_text("Grid of the images that were drawn")
    assert grid.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    page.locator("a[download$='.zip']").wait_for(timeout=WAIT)
    assert clipped(page) == [] and barriers(page) == []
    assert grid.evaluate(BARE)  # no label, and no button
    side = grid.bounding_box()["width"]
    grid.click(position={"x": side / 4, "y": side / 4})
    page.get_by_alt_text("The image that was uploaded").wait_for(timeout=WAIT)
    assert page.evaluate("window.scrollY") == 0
    press(page, "Is the image ordinary?")
    assert "costs bits" not in text_of(page, "Answer", "bits per dim")


def test_stop_answers_within_a_step_and_the_next_press_counts(visit, monkeypatch):
    steps = EBM.iterate_sample

    def slow(*args, **kwargs):
        return (time.sleep(STEP) or step for step in steps(*args, **kwargs))

    monkeypatch.setattr(EBM, "iterate_sample", slow)
    page, other = visit(), visit()
    set_number(page, "Steps", 9)
    press(page, "Generate")
    for _ in range(2):
        text_of(page, "Run", "^Step 1 of 9")
        page.wait_for_timeout(500)  # the second step has begun
        press(page, "Stop")
        assert seconds_until(page, "Run", "^Stopped · Step 1 of 9") < STEP
        assert page.get_by_alt_text("Grid of the images that were drawn").is_visible()
        press(page, "Generate")
        assert seconds_until(page, "Run", "^Waiting") < STEP
    open_tab(page, "Toy")  # a visitor has one of these runs at a time
    press(page, "Train")
    text_of(page, "Run", "^Waiting")
    press(page, "Stop")
    text_of(page, "Run", "^Stopped before the first step$")
    open_tab(other, "Toy")  # others have their turns
    press(other, "Train")
    text_of(other, "Run", "^Step")
    press(other, "Stop")
    open_tab(other, "Score")  # runs of seconds do not wait for those of minutes
    open_tab(other, "Upload")
    other.locator(".small img").first.click()
    other.get_by_alt_text("The image that was uploaded").wait_for(timeout=WAIT)
    press(other, "Is the image ordinary?")
    text_of(other, "Answer", "bits per dim")
    open_tab(page, "Generate")
    text_of(page, "Run", "^Step")
    press(page, "Stop")


def test_an_upload_is_scored_large_and_sharp_and_a_bad_file_refused(visit, tmp_path):
    page = visit()
    open_tab(page, "Score")
    open_tab(page, "Upload")
    page.locator(".small img").first.click()
    uploaded = page.get_by_alt_text("The image that was uploaded")
    uploaded.wait_for(timeout=WAIT)
    press(page, "Is the image ordinary?")
    assert "costs bits" not in text_of(page, "Answer", "bits per dim")
    seen = page.get_by_alt_text("The image after resizing and rounding to the levels of the model")
    for image in (uploaded, seen):
        assert image.bounding_box()["width"] >= 220
        assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert barriers(page) == []
    page.get_by_label("Take it as it is").first.check()
    text_of(page, "Answer", "^$")  # no result of another choice stays
    page.get_by_label("Remove Image").first.click()
    bad = tmp_path / "photo.png"
    bad.write_text("no image")
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Click to Upload").locator("visible=true").first.click()
    chooser.value.set_files(bad)
    uploaded.wait_for(state="attached", timeout=WAIT)
    press(page, "Is the image ordinary?")
    toast = page.get_by_test_id("toast-body")
    toast.wait_for(timeout=WAIT)
    assert "photo.png' as an image" in toast.inner_text()
    assert str(tmp_path) not in toast.inner_text()
    assert "photo.png' as an image" in text_of(page, "Answer", "^Not done: ")


def test_a_drawn_digit_has_a_log_likelihood(visit):
    page = visit()
    open_tab(page, "Score")
    draw(page)
    page.get_by_role("button", name="Is the drawing ordinary?").click()
    text_of(page, "Answer", r"\n-?\d+\.\d{3} bits per dim")


def test_a_class_is_drawn_and_a_drawing_completed(visit):
    page = visit()
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="told: digits, 8 × 8 pixels").click()
    page.get_by_label("2", exact=True).check()
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    press(page, "Generate")
    text_of(page, "Run", "^3 images in .* of 2 with guidance 1.5")
    open_tab(page, "Complete")
    draw(page, down=0.5)
    page.get_by_label("upper half").check()
    set_number(page, "Temperatures", 3)
    press(page, "Complete")
    text_of(page, "Run", "^Step 3 of 3 · told")
    assert page.get_by_alt_text("Completions of the drawing").is_visible()
    assert clipped(page) == [] and barriers(page) == []
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="grey: digits, 8 × 8 pixels").first.click()
    text_of(page, "Run", "^$")
    open_tab(page, "Generate")
    text_of(page, "Run", "^$")


def test_toy_and_information_learn_and_another_choice_leaves_no_result_of_the_old(visit):
    page = visit()
    open_tab(page, "Toy")
    set_number(page, "Iterations", 5000)  # longer than it takes to press
    press(page, "Train")
    text_of(page, "Run", "^Step")
    press(page, "Stop")
    text_of(page, "Run", "^Stopped · Step")
    page.get_by_label("Method", exact=True).locator("visible=true").click()
    page.get_by_role("option", name=re.compile("^TSM")).locator("visible=true").first.click()
    text_of(page, "Run", "^$")
    open_tab(page, "Mutual information")
    set_number(page, "Rows to draw", 200)
    set_number(page, "Steps at most", 5)
    press(page, "Draw X and Y")
    text_of(page, "True value of what was drawn", "normal_1x1: 0.4133")
    page.get_by_text("normal_1x1_y").locator("visible=true").first.wait_for(timeout=WAIT)
    press(page, "Estimate")
    assert "normal_1x1_x.npy and normal_1x1_y.npy" in text_of(page, "Estimate", "mutual inform")
    set_number(page, "Steps at most", 2000)
    press(page, "Estimate")
    text_of(page, "Estimate", "^(Starting|Step)")
    press(page, "Draw X and Y")  # ends the run, which must not fill the box again
    text_of(page, "Estimate", "^$")
    page.wait_for_timeout(3000)
    text_of(page, "Estimate", "^$", wait=100)


def test_diagnostics_say_what_the_model_is(visit, folder):
    readme = folder / "grey" / "README.md"
    readme.write_text('# On digits\n<img src=x onerror="window.bad = 1">\n\n- a **bold** item\n')
    try:
        page = visit()
        model = page.get_by_label("Model", exact=True)
        for tab, is_used in zip(TABS, (*[True] * 3, False, False, True), strict=True):
            open_tab(page, tab)
            model.wait_for(state="visible" if is_used else "hidden", timeout=WAIT)
        page.get_by_role("cell", name="8 × 8 pixels, grey, 17 levels").wait_for(timeout=WAIT)
        press(page, "Description and configuration")
        page.get_by_role("heading", name="On digits").wait_for(timeout=WAIT)
        assert page.evaluate("window.bad") is None
        assert barriers(page) == []
    finally:
        readme.unlink()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_every_tab_is_accessible_and_whole_without_scrolling_sideways(visit, width, theme):
    page, found = visit(width=width, theme=theme), {}
    for tab in (*TABS[:2], "Upload", *TABS[2:5], "Table", TABS[5]):
        open_tab(page, tab)
        unfold(page)
        page.wait_for_timeout(1000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
        found[tab] = clipped(page) + barriers(page)
    assert not any(found.values()), found
