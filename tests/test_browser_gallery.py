"""The gallery and the last runs in a headless Chromium."""

import re

import pytest
from browsing import WAIT, barriers, clipped, picture, press, set_number, text_of, wait_until

pytestmark = pytest.mark.browser


def test_the_gallery_is_accessible(visit):
    page = visit()
    press(page, "Generate")
    page.locator(".tiles img").nth(15).wait_for(timeout=WAIT)
    press(page, "Advanced")
    page.wait_for_timeout(1000)
    picture(page, "gallery")
    assert barriers(page) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_images_stand_one_by_one_and_a_click_sends_one_to_score(visit, width):
    page = visit(width=width)
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    page.get_by_label("Log-likelihoods of the images").check()
    press(page, "Generate")
    text_of(page, "Run", "log-likelihoods at eps")
    tiles, captions = page.locator(".tiles img"), page.locator(".tiles .caption-label")
    tiles.nth(2).wait_for(timeout=WAIT)
    boxes = [tiles.nth(index).bounding_box() for index in range(3)]
    assert min(box["width"] for box in boxes) >= (220 if width == 1280 else 120)
    assert boxes[0]["y"] == boxes[1]["y"]  # side by side on a telephone too
    assert clipped(page) == []
    assert tiles.first.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert captions.all_inner_texts()[0].startswith("1: ")
    page.get_by_label("most likely first").check()

    def nats():
        return [float(text.split()[1].replace("−", "-")) for text in captions.all_inner_texts()]

    wait_until(page, lambda: nats() == sorted(nats(), reverse=True), "no order")
    assert len(nats()) == 3
    picture(page, f"gallery-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    best = captions.first.inner_text()
    tiles.first.click()
    sent = page.get_by_alt_text("The image that was uploaded")
    sent.wait_for(timeout=WAIT)
    press(page, "Log-likelihood of the image")
    text = text_of(page, "Log-likelihood", "^Bits per dim: ")
    found = float(re.search(r"\((-?[0-9.]+) ± ", text)[1])
    mean, error = (float(part) for part in re.findall(r"-?[0-9.]+", best)[1:])
    assert abs(found - mean) < 8 * error
    picture(page, f"sent-{width}")


def test_the_last_runs_survive_a_reload_and_set_every_choice(visit):
    page = visit()
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    press(page, "Generate")
    seed = re.search("seed ([0-9]+)", text_of(page, "Run", "^3 images"))[1]
    page.get_by_label("Last runs").click()
    page.get_by_role("option").wait_for(timeout=WAIT)  # the browser has it
    page.reload()
    page.get_by_role("button", name="Generate", exact=True).wait_for(timeout=WAIT)
    press(page, "Advanced")
    page.get_by_label("Last runs").click()
    option = page.get_by_role("option")
    option.wait_for(timeout=WAIT)
    assert option.all_inner_texts() == [
        f"grey · Probability-flow ODE · 3 images · 2 steps · seed {seed}"
    ]
    option.click()
    box = page.get_by_label("Seed", exact=True).first
    wait_until(page, lambda: box.input_value() == seed, "another seed")
    assert not page.get_by_label("New seed for every run").is_checked()
    press(page, "Generate")
    assert f"seed {seed} " in text_of(page, "Run", "^3 images")
    picture(page, "last-runs")
