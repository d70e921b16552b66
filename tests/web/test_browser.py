"""The page in a headless Chromium: visitor actions, accessibility, and no external requests."""

import re
import time

import pytest
from browsing import (
    TABS,
    WAIT,
    accessibility_violations,
    clipped,
    draw,
    expand_all,
    open_tab,
    press,
    set_number,
    text_of,
)

from ebm_app.ebm import EBM

pytestmark = pytest.mark.browser
#: Seconds
STEP = 4
#: Whether nothing covers the upper corners of a picture, which is smaller than its frame
UNCOVERED = """image => {
  image.scrollIntoView({block: "center"});
  const frame = image.getBoundingClientRect();
  const scale = Math.min(frame.width / image.naturalWidth, frame.height / image.naturalHeight);
  const [across, down] = [scale * image.naturalWidth / 2 - 4, scale * image.naturalHeight / 2 - 4];
  return [-across, across].every((x) => document.elementFromPoint(
    frame.x + frame.width / 2 + x, frame.y + frame.height / 2 - down) === image);
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_images_are_generated_and_sent_to_score(visit, width):
    page = visit(width=width)
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    page.get_by_label("New seed for every run").uncheck()
    press(page, "Generate")
    text_of(page, "Run", "^3 images")
    grid = page.get_by_alt_text("Grid of generated images")
    assert grid.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert clipped(page) == [] and accessibility_violations(page) == []
    assert grid.evaluate(UNCOVERED)
    side = grid.bounding_box()["width"]
    grid.click(position={"x": side / 4, "y": side / 4})
    page.get_by_alt_text("The uploaded image").wait_for(timeout=WAIT)
    assert page.evaluate("window.scrollY") == 0
    press(page, "Score the image")
    assert "resized" not in text_of(page, "Answer", "bits per dim")


def test_stop_works_within_a_step_and_quick_runs_do_not_wait(visit, monkeypatch):
    steps = EBM.iterate_sample

    def slow(*args, **kwargs):
        return (time.sleep(STEP) or step for step in steps(*args, **kwargs))

    monkeypatch.setattr(EBM, "iterate_sample", slow)
    page = visit()
    set_number(page, "Steps", 9)
    press(page, "Generate")
    for _ in range(2):
        text_of(page, "Run", "^Step 1 of 9")
        page.wait_for_timeout(500)  # the second step has begun
        press(page, "Stop")
        text_of(page, "Run", "^Stopped · Step 1 of 9", wait=1000 * STEP)
        assert page.get_by_alt_text("Grid of generated images").is_visible()
        press(page, "Generate")
        text_of(page, "Run", "^Waiting", wait=1000 * STEP)
    open_tab(page, "Score")  # quick runs do not wait for long ones
    draw(page)
    press(page, "Score the drawing")
    text_of(page, "Answer", r"\n-?\d+\.\d{3} ± ")
    open_tab(page, "Generate")
    text_of(page, "Run", "^Step")
    press(page, "Stop")


def test_upload_is_shown_sharp_and_bad_file_refused(visit, tmp_path):
    page = visit()
    open_tab(page, "Score")
    open_tab(page, "Upload")
    page.locator(".small img").first.click()
    uploaded = page.get_by_alt_text("The uploaded image")
    uploaded.wait_for(timeout=WAIT)
    press(page, "Score the image")
    assert "resized" not in text_of(page, "Answer", "bits per dim")
    seen = page.get_by_alt_text("The image after resizing and rounding to the model's levels")
    for image in (uploaded, seen):
        assert image.bounding_box()["width"] >= 220
        assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert accessibility_violations(page) == []
    page.get_by_label("Do not cut out the digit").first.check()
    text_of(page, "Answer", "^$")  # another setting clears the result
    page.get_by_label("Remove Image").first.click()
    bad = tmp_path / "photo.png"
    bad.write_text("no image")
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Click to Upload").locator("visible=true").first.click()
    chooser.value.set_files(bad)
    uploaded.wait_for(state="attached", timeout=WAIT)
    press(page, "Score the image")
    toast = page.get_by_test_id("toast-body")
    toast.wait_for(timeout=WAIT)
    assert "photo.png" in toast.inner_text() and str(tmp_path) not in toast.inner_text()
    assert "photo.png" in text_of(page, "Answer", "^Not done: ")


def test_class_is_generated_and_drawing_completed(visit):
    page = visit()
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="labelled: digits, 8 × 8 pixels").click()
    page.get_by_label("2", exact=True).check()
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    press(page, "Generate")
    text_of(page, "Run", "^3 images in .* class 2, guidance 1.5")
    open_tab(page, "Complete")
    draw(page, down=0.5)
    page.get_by_label("upper half").check()
    set_number(page, "Temperatures", 3)
    press(page, "Complete")
    text_of(page, "Run", "^Step 3 of 3 · labelled")
    assert page.get_by_alt_text("Completions of the drawing").is_visible()
    assert clipped(page) == [] and accessibility_violations(page) == []
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="grey: digits, 8 × 8 pixels").first.click()
    text_of(page, "Run", "^$")  # another model clears the results
    open_tab(page, "Generate")
    text_of(page, "Run", "^$")


def test_new_choices_clear_toy_and_information(visit):
    page = visit()
    open_tab(page, "Toy")
    set_number(page, "Iterations", 5000)  # long enough to be stopped
    press(page, "Train")
    text_of(page, "Run", "^Step")
    press(page, "Stop")
    text_of(page, "Run", "^Stopped · Step")
    page.get_by_label("Method", exact=True).locator("visible=true").click()
    page.get_by_role("option", name=re.compile("^TSM")).locator("visible=true").first.click()
    text_of(page, "Run", "^$")
    open_tab(page, "Mutual information")
    set_number(page, "Rows to draw", 200)
    set_number(page, "Max steps", 5)
    press(page, "Draw X and Y")
    text_of(page, "True value", "normal_1x1: 0.4133")
    page.get_by_text("normal_1x1_y").locator("visible=true").first.wait_for(timeout=WAIT)
    press(page, "Estimate")
    assert "normal_1x1_x.npy and normal_1x1_y.npy" in text_of(page, "Estimate", "mutual inform")
    set_number(page, "Max steps", 2000)
    press(page, "Estimate")
    text_of(page, "Estimate", "^(Starting|Fold)")
    press(page, "Draw X and Y")  # stops the run, which must not write again
    text_of(page, "Estimate", "^$")
    page.wait_for_timeout(3000)
    text_of(page, "Estimate", "^$", wait=100)


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_every_tab_is_accessible_and_fits_the_window(visit, width, theme):
    page, found = visit(width=width, theme=theme), {}
    model = page.get_by_label("Model", exact=True)
    for tab in (*TABS[:2], "Upload", *TABS[2:5], "Table", TABS[5]):
        open_tab(page, tab)
        uses_model = tab not in ("Toy", "Mutual information", "Table")
        model.wait_for(state="visible" if uses_model else "hidden", timeout=WAIT)
        expand_all(page)
        page.wait_for_timeout(1000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
        found[tab] = clipped(page) + accessibility_violations(page)
    assert not any(found.values()), found
