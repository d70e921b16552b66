"""The page in a headless Chromium: visitor actions, accessibility, and no external requests."""

import io
import math
import re
import time
from functools import partial

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import draws_of_page, load_script
from PIL import Image
from playwright.sync_api import expect

from ebm_app.data.pictures import prepare_image
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


def draw(page, down=0.8, across=0.5):
    """Draw a vertical stroke on the visible canvas."""
    scenes.draw(page, ((across, 0.2), (across, down)))


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


def score_of(models, image, repeats=16, seed=5):
    """Return the verdict and the bits of the library for an image (1, C, H, W) on "grey"."""
    ebm, detector = models.load("grey"), models.open("grey").detector
    nats = draws_of_page(ebm, image, repeats, seed)
    bits = -nats.mean().item() / (image.numel() * math.log(2))
    return f"(p = {detector.p_value(image).item():.2g})", f"{bits:.3f} ± "


def test_generated_image_is_scored_without_a_change(visit, models):
    page = visit()
    open_tab(page, "Generate")
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    page.get_by_label("New seed for every run").uncheck()
    press(page, "Generate")
    text_of(page, "Run", "^3 images")
    image = page.locator(".small img:visible").nth(2)
    assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert page.evaluate(CLIPPED) == [] and accessibility_violations(page) == []
    image.click()
    page.get_by_alt_text("The uploaded image").wait_for(timeout=WAIT)
    verdict, bits = score_of(models, models.load("grey").sample(3, "dpm", 5, num_steps=2)[2:3])
    answer = text_of(page, "Answer", re.escape(bits))
    assert verdict in answer
    assert "resized" not in answer and page.evaluate("window.scrollY") == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_drawing_is_scored_when_the_pen_lifts(visit, models, width):
    page = visit(width=width)
    text_of(page, "Answer", "^The canvas is empty")  # the canvas is ready
    canvas = page.locator("canvas:visible").first
    box = canvas.bounding_box()
    assert box["y"] + box["height"] <= 900  # in the first screen
    press(page, "Details")
    draw(page)
    text_of(page, "Answer", "±")
    seen = page.get_by_alt_text("The image after resizing and rounding to the model's levels")
    seen.wait_for(timeout=WAIT)
    first = seen.get_attribute("src")
    draw(page, across=0.7)  # a second stroke
    expect(seen).not_to_have_attribute("src", first, timeout=WAIT)
    text_of(page, "Answer", "±")
    content = page.request.get(seen.get_attribute("src")).body()
    image = prepare_image(Image.open(io.BytesIO(content)), models.config("grey"))
    assert (image.sum(2) > 0).sum() >= 3  # columns of both strokes
    verdict, bits = score_of(models, image)
    assert verdict in text_of(page, "Answer", re.escape(bits))
    page.get_by_alt_text("The image with noise").wait_for(timeout=WAIT)
    assert page.evaluate(CLIPPED) == [] and accessibility_violations(page) == []
    page.get_by_label("Clear canvas").first.click()
    text_of(page, "Answer", "^The canvas is empty")


def test_page_started_in_another_folder_scores_an_example(visit, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    page = visit()
    text_of(page, "Answer", "^The canvas is empty")  # the canvas is ready
    open_tab(page, "Upload")
    page.locator(".small img:visible").nth(9).click()
    answer = text_of(page, "Answer", "±")
    assert not page.get_by_test_id("toast-body").count()
    open_tab(page, "Draw")
    page.get_by_label("Clear canvas").first.click()
    page.wait_for_timeout(3000)
    # an empty canvas keeps the score of an upload
    assert text_of(page, "Answer", "±").split("\n")[0] == answer.split("\n")[0]


def test_stop_works_within_a_step_and_kinds_do_not_wait(visit, monkeypatch):
    steps = EBM.iterate_sample

    def slow(*args, **kwargs):
        return (time.sleep(STEP) or step for step in steps(*args, **kwargs))

    monkeypatch.setattr(EBM, "iterate_sample", slow)
    page = visit()
    open_tab(page, "Generate")
    set_number(page, "Steps", 99)  # longer than the score
    press(page, "Generate")
    text_of(page, "Run", "^Step 1 of 99")
    open_tab(page, "Score")  # scores do not wait for samples
    draw(page)
    text_of(page, "Answer", "±")
    open_tab(page, "Generate")
    press(page, "Stop")
    page.wait_for_timeout(1000 * STEP)
    stopped = text_of(page, "Run", "^Step")
    page.wait_for_timeout(2000 * STEP)
    assert text_of(page, "Run", "^Step") == stopped


def test_link_selects_model_class_seed_and_tab(visit):
    page = visit(query="&model=labelled&class=2&seed=7&guidance_scale=2.5&tab=generate")
    page.get_by_role("button", name="Generate", exact=True).wait_for(timeout=WAIT)
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    press(page, "Generate")
    text_of(page, "Run", "^3 images in .* class 2, guidance 2.5 · labelled · seed 7")
    page.wait_for_timeout(1000)
    assert "seed=7" in page.url and "class=2" in page.url
    assert page.evaluate(CLIPPED) == [] and accessibility_violations(page) == []
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="grey: digits, 8 × 8 pixels").first.click()
    text_of(page, "Run", "^$")  # another model clears the results
    page.evaluate("window.linkWasRead = false")  # as before the page has read its address
    open_tab(page, "Score")
    page.wait_for_timeout(1000)
    assert "tab=generate" in page.url


def test_toy_is_cleared_and_information_is_learned(visit):
    page = visit()
    open_tab(page, "Toy")
    set_number(page, "Iterations", 1000)  # long enough to be stopped
    press(page, "Train")
    text_of(page, "Run", "^Step")
    press(page, "Stop")
    page.get_by_label("Method", exact=True).locator("visible=true").click()
    page.get_by_role("option", name=re.compile("^TSM")).locator("visible=true").first.click()
    text_of(page, "Run", "^$")
    open_tab(page, "Mutual information")
    press(page, "Learn")
    text_of(page, "Learned mutual information", "truth 10 nats")  # while it learns
    text_of(page, "Learned mutual information", "step 2000 of 2000")


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (390, "light")])
def test_every_tab_is_accessible_and_fits_the_window(visit, width, theme):
    page, found = visit(width=width, theme=theme), {}
    model = page.get_by_label("Model", exact=True)
    for tab in ("Score", "Upload", *TABS[1:]):
        open_tab(page, tab)
        uses_model = tab not in ("Toy", "Mutual information")
        model.wait_for(state="visible" if uses_model else "hidden", timeout=WAIT)
        expand_all(page)
        page.wait_for_timeout(1000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
        found[tab] = page.evaluate(CLIPPED) + accessibility_violations(page)
    assert not any(found.values()), found
