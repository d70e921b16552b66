"""What the tests of the page in a headless Chromium share."""

import re

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

TABS = ("Generate", "Score", "Complete", "Toy", "Mutual information", "Diagnostics")
WAIT = 60_000
#: what axe finds in the components of gradio itself, which no setting of the page changes; a table
#: wider than a telephone has cells for the keyboard once it has rows
OF_GRADIO = {
    ("aria-prohibited-attr", "Empty value"),
    ("button-name", 'class="gallery-item'),
    ("scrollable-region-focusable", 'class="virtual-table-viewport'),
}


def open_tab(page, name):
    """Open a tab of the page, which in a narrow window may stand behind "More tabs"."""
    tab = page.get_by_role("tab", name=name, exact=True)
    if not tab.count():
        page.get_by_role("button", name="More tabs").click()
        tab = page.locator(".overflow-dropdown:visible").get_by_role("button", name=name)
    tab.click()


def press(page, name):
    """Press a button of the tab that is open."""
    page.get_by_role("button", name=name).locator("visible=true").first.click()


def text_of(page, label, pattern, wait=WAIT):
    """The text of a box, once it is what it should be."""
    box = page.get_by_label(label, exact=True).locator("visible=true").first
    expect(box).to_have_value(re.compile(pattern), timeout=wait)
    return box.input_value()


def draw(page, down=0.8):
    """A stroke on the canvas of the tab that is open."""
    canvas = page.locator("canvas:visible").first
    canvas.wait_for(timeout=WAIT)
    undo = page.get_by_role("button", name="Undo", exact=True).locator("visible=true")
    while not undo.is_enabled():  # the brush comes after the canvas
        box = canvas.bounding_box()
        x, y, height = box["x"] + box["width"] / 2, box["y"], box["height"]
        page.mouse.move(x, y + 0.2 * height)
        page.mouse.down()
        page.mouse.move(x, y + down * height, steps=12)
        page.mouse.up()
        page.wait_for_timeout(500)


def set_number(page, label, value):
    box = page.get_by_role("spinbutton", name=re.compile(f"for {label}$"))
    if not box.is_visible():
        press(page, "Advanced")
    box.fill(str(value))
    box.press("Tab")


def barriers(page):
    """What axe calls serious or critical, short of what is gradio's own."""
    # a button that a run has given back fades into its colour
    page.wait_for_function("!document.querySelector('button.primary:disabled')", timeout=WAIT)
    page.wait_for_timeout(1000)
    violations = Axe().run(page).response["violations"]
    nodes = [
        (violation["id"], node["html"][:200], node["failureSummary"][-120:])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    return [
        (name, html, summary)
        for name, html, summary in nodes
        if not any(name == known and part in html for known, part in OF_GRADIO)
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
