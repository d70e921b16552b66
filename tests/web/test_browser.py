"""The page in a headless Chromium: visitor actions, accessibility, and no external requests."""

import re
import time
from functools import partial

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import load_script

from ebm_app.ebm import EBM

pytestmark = pytest.mark.browser
scenes = load_script("tools/screenshots.py")
open_tab, press, TABS = scenes.open_tab, scenes.press, scenes.TABS
#: Milliseconds
WAIT = 60_000
text_of = partial(scenes.text_of, wait=WAIT)
#: Violations inside gradio's own components: axe rule and part of the HTML
IN_GRADIO = {
    ("aria-prohibited-attr", "Empty value"),
    ("button-name", 'class="gallery-item'),
}
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
#: Titles, labels, buttons and values whose text does not fit their element
CLIPPED = """() => {
  const texts = "h1, h2, h3, h4, h5, th, td:not(.filename), label, button, legend, "
    + "[data-testid=block-info], [data-testid=block-label], .label-wrap span, "
    + ".caption-label, input:not([type=range])";
  return [...document.querySelectorAll(texts)]
    .filter((element) => element.checkVisibility() && element.clientWidth > 1)
    .filter((element) => element.scrollWidth > element.clientWidth + 1
      && (element.tagName === "INPUT" || getComputedStyle(element).overflowX !== "visible"))
    .map((element) => element.outerHTML.slice(0, 150) + (element.value ?? ""));
}"""


def draw(page, down=0.8):
    """Draw a vertical stroke on the visible canvas."""
    scenes.draw(page, ((0.5, 0.2), (0.5, down)))


def set_number(page, label, value):
    """Set the number box of a slider, after opening "Advanced" if necessary."""
    box = page.get_by_role("spinbutton", name=re.compile(f"for {label}$"))
    if not box.is_visible():
        press(page, "Advanced")
        page.wait_for_timeout(500)  # until the page listens to it
    box.fill(str(value))
    box.press("Tab")


def accessibility_violations(page):
    """Return serious and critical axe violations outside gradio's own components."""
    # a button that is enabled again fades into its colour
    page.wait_for_function("!document.querySelector('button.primary:disabled')", timeout=WAIT)
    page.wait_for_timeout(1000)
    violations = Axe().run(page).response["violations"]
    return [
        (found["id"], node["html"][:200], node["failureSummary"][-120:])
        for found in violations
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
        if not any(found["id"] == rule and part in node["html"][:200] for rule, part in IN_GRADIO)
    ]


def expand_all(page):
    """Expand all accordions of the open tab."""
    folded = page.locator("button.label-wrap:not(.open):visible")
    while folded.count():
        folded.first.click()
        page.wait_for_timeout(200)


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
    assert page.evaluate(CLIPPED) == [] and accessibility_violations(page) == []
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
    page.get_by_label("Remove Image").first.click()
    text_of(page, "Answer", "^$")  # another image clears the result
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
    assert page.evaluate(CLIPPED) == [] and accessibility_violations(page) == []
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


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (390, "light")])
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
        found[tab] = page.evaluate(CLIPPED) + accessibility_violations(page)
    assert not any(found.values()), found
