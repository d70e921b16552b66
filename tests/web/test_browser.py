"""The web app in a headless Chromium: visitor actions, and no external requests."""

import re

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import load_script, save_digit, save_picture
from playwright.sync_api import expect

from ebm_app.web.app import PAGES

pytestmark = pytest.mark.browser
scenes = load_script("tools/screenshots.py")
#: Milliseconds
WAIT = 60_000
SEEN = "The image after resizing and rounding to the model's levels"


def answer(page):
    """Return the answer once its verdict is there."""
    box = page.locator("#answer")
    expect(box).to_contain_text("unusual", timeout=WAIT)
    return box


def send(page, path):
    page.locator("input[type=file]").first.set_input_files(path)


def test_new_image_replaces_the_answer_of_the_old_one(visit, models, tmp_path):
    page = visit()
    for index in (0, 1):
        send(page, save_digit(tmp_path / f"{index}.png", index))
        page.wait_for_timeout(300)
    page.wait_for_timeout(6000)
    from ebm_app.web.score import Scorer

    *_, expected = Scorer(models, 5).score("grey", str(tmp_path / "1.png"))
    head = expected.text.split("\n")[0].removeprefix("## ")
    expect(page.locator("#answer h2")).to_have_text(head, timeout=WAIT)


def test_unreadable_file_is_named_in_the_answer(visit, tmp_path):
    page = visit()
    (tmp_path / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    send(page, tmp_path / "a.svg")
    box = page.locator("#answer")
    expect(box).to_contain_text("This file cannot be read as an image", timeout=WAIT)
    expect(box).not_to_contain_text("Upload an image, draw one")


def test_drawing_is_scored_when_the_pen_lifts(visit):
    page = visit()
    page.get_by_label("Draw", exact=True).check()
    expect(page.locator("#answer")).to_contain_text("Upload an image, draw one", timeout=WAIT)
    scenes.draw(page, ((0.5, 0.2), (0.5, 0.8)))
    answer(page)
    expect(page.get_by_alt_text(SEEN)).to_be_visible(timeout=WAIT)


def test_flagged_image_has_no_class(visit, tmp_path):
    page = visit()
    noise = np.random.default_rng(0).integers(0, 17, (8, 8)) * 255 / 16
    send(page, save_picture(tmp_path / "noise.png", noise.round()))
    expect(answer(page)).to_contain_text("Flagged as unusual", timeout=WAIT)
    expect(page.locator("#answer")).not_to_contain_text("class")


def test_generated_images_have_likelihoods_and_a_link(visit):
    page = visit("generate", query="&model=labelled&class=2&seed=7")
    expect(page.get_by_label("2", exact=True)).to_be_checked(timeout=WAIT)
    scenes.press(page, "Generate")
    scenes.text_of(page, "Run", "^10 images in .* class 2, guidance 1.5 · labelled · seed 7", WAIT)
    expect(page.get_by_text(re.compile("^2: log p ≥")).first).to_be_visible(timeout=WAIT)
    assert "seed=7" in page.url and "class=2" in page.url


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (390, "light")])
def test_every_page_is_accessible_and_fits_the_window(visit, width, theme):
    found = {}
    for name, path in PAGES.items():
        page = visit(path, width=width, theme=theme)
        page.wait_for_timeout(4000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        violations = Axe().run(page).response["violations"]
        found[name] = [
            (each["id"], node["html"][:200])
            for each in violations
            if each["impact"] == "critical"
            for node in each["nodes"]
            if "gallery-item" not in node["html"] and "Empty value" not in node["html"]
        ]
        page.context.close()
    assert not any(found.values()), found
