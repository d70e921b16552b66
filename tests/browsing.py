"""What the tests of the page in a headless Chromium share."""

import re
from functools import partial

from axe_playwright_python.sync_playwright import Axe
from conftest import load_script

scenes = load_script("ui/screenshots.py")
open_tab, press = scenes.open_tab, scenes.press
TABS = tuple(scenes.SCENES)
WAIT = 60_000
text_of = partial(scenes.text_of, wait=WAIT)
#: what axe finds in the components of gradio itself, which no setting of the page changes; a table
#: wider than a telephone has cells for the keyboard once it has rows
OF_GRADIO = {
    ("aria-prohibited-attr", "Empty value"),
    ("button-name", 'class="gallery-item'),
    ("scrollable-region-focusable", 'class="virtual-table-viewport'),
}


def draw(page, down=0.8):
    """A stroke on the canvas of the tab that is open."""
    scenes.draw(page, ((0.5, 0.2), (0.5, down)))


def set_number(page, label, value):
    box = page.get_by_role("spinbutton", name=re.compile(f"for {label}$"))
    if not box.is_visible():
        press(page, "Advanced")
        page.wait_for_timeout(500)  # until the page listens to it
    box.fill(str(value))
    box.press("Tab")


def barriers(page):
    """What axe calls serious or critical, short of what is gradio's own."""
    # a button that a run has given back fades into its colour
    page.wait_for_function("!document.querySelector('button.primary:disabled')", timeout=WAIT)
    page.wait_for_timeout(1000)
    violations = Axe().run(page).response["violations"]
    return [
        (found["id"], node["html"][:200], node["failureSummary"][-120:])
        for found in violations
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
        if not any(found["id"] == name and part in node["html"][:200] for name, part in OF_GRADIO)
    ]


def unfold(page):
    """Open all that is folded away in the tab that is open."""
    folded = page.locator("button.label-wrap:not(.open):visible")
    while folded.count():
        folded.first.click()
        page.wait_for_timeout(200)


def clipped(page):
    """Titles, labels, buttons and chosen values of which a part is out of sight."""
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
