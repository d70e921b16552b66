"""Helpers of the browser tests."""

import re
from functools import partial

from axe_playwright_python.sync_playwright import Axe
from conftest import load_script

scenes = load_script("tools/screenshots.py")
open_tab, press = scenes.open_tab, scenes.press
TABS = tuple(scenes.SCENES)
#: Milliseconds
WAIT = 60_000
text_of = partial(scenes.text_of, wait=WAIT)
#: Violations inside gradio's own components: axe rule and part of the HTML
IN_GRADIO = {
    ("aria-prohibited-attr", "Empty value"),
    ("button-name", 'class="gallery-item'),
}


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


def clipped(page):
    """Return titles, labels, buttons and values whose text does not fit their element."""
    return page.evaluate(CLIPPED)


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
