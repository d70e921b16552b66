"""Pictures of every tab of the page, at work with a model.

python ui/screenshots.py --output_dir docs
"""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from ebm_app.cli.command_line import parse, run_script
from ebm_app.utils.fields import configuration, setting

WAIT = 600_000  # milliseconds
#: colours of a picture, which keep a file small
NUM_COLOURS = 128
#: by tab: the button, and the box that then holds a text like this
SCENES = {
    "Generate": ("Generate", "Run", r"^\d+ images"),
    "Score": ("Is the image ordinary?", "Log-likelihood", "over 16 draws"),
    "Complete": ("Complete", "Run", r"^Step (\d+) of \1 "),
    "Toy": ("Train", "Run", r"^\d+ steps"),
    "Mutual information": ("Estimate", "Estimate", r"rows, 1 \+ 1 columns"),
    "Diagnostics": ("Run the self-test", "Result of the self-test", "checks passed"),
}
#: in shares of the sides of a canvas
HALF_A_DIGIT = ((0.37, 0.35), (0.5, 0.25), (0.64, 0.35), (0.6, 0.6))
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
Page = Any  # playwright.sync_api.Page, of an optional package


@contextmanager
def open_browser() -> Iterator["playwright.sync_api.Browser"]:  # noqa: F821 - an optional package
    """The Chromium of this machine, with an empty profile; or Playwright's own."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, COMMANDS)), None)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=FLAGS)


def open_tab(page: Page, name: str) -> None:
    """Open a tab of the page, which in a narrow window may stand behind "More tabs"."""
    tab = page.get_by_role("tab", name=name, exact=True)
    if not tab.count():
        page.get_by_role("button", name="More tabs").click()
        tab = page.locator(".overflow-dropdown:visible").get_by_role("button", name=name)
    tab.click()


def press(page: Page, name: str) -> None:
    """Press a button of the tab that is open."""
    page.get_by_role("button", name=name).locator("visible=true").first.click()


def text_of(page: Page, label: str, pattern: str, wait: float = WAIT) -> str:
    """The text of a box, once it is what it should be, or an error after some milliseconds."""
    from playwright.sync_api import expect

    box = page.get_by_label(label, exact=True).locator("visible=true").first
    expect(box).to_have_value(re.compile(pattern), timeout=wait)
    return box.input_value()


def draw(page: Page, points: Sequence[tuple[float, float]]) -> None:
    """A stroke through points, in shares of its sides, on the canvas of the tab that is open."""
    canvas = page.locator("canvas:visible").first
    canvas.wait_for(timeout=WAIT)
    undo = page.get_by_role("button", name="Undo", exact=True).locator("visible=true")
    for _ in range(100):  # the brush comes after the canvas
        box = canvas.bounding_box()
        for number, (x, y) in enumerate(points):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=12)
            if not number:
                page.mouse.down()
        page.mouse.up()
        page.wait_for_timeout(500)
        if undo.is_enabled():
            return
    raise TimeoutError("the canvas takes no stroke")


def take(page: Page, tab: str, file: Path) -> None:
    """A picture of a tab after its scene, in few colours."""
    button, label, pattern = SCENES[tab]
    open_tab(page, tab)
    page.wait_for_timeout(2000)
    if tab == "Complete":
        draw(page, HALF_A_DIGIT)
    if tab == "Score":
        open_tab(page, "Upload")
        press(page, "Details")
        page.locator(".small img").first.click()
        page.get_by_alt_text("The image that was uploaded").wait_for(timeout=WAIT)
    press(page, button)
    text_of(page, label, pattern)
    page.mouse.move(0, 0)
    # pictures are loaded when they come in sight
    for place in ("document.body.scrollHeight", "0"):
        page.evaluate(f"window.scrollTo(0, {place})")
        page.wait_for_timeout(1000)
    page.screenshot(path=file, full_page=True)
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(NUM_COLOURS)
    small.save(file, optimize=True)


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    model: str = setting("a folder or a bundled name", "mnist")
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    output_dir: Path = setting("where the pictures go", Path("runs/screenshots"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Open the page, visit every tab, and write ui-<tab>.png."""
    args = parse(Arguments, __doc__, argv)
    # seconds to import: --help does without
    from ebm_app.web.app import build_app
    from ebm_app.web.models import Models, find_models
    from ebm_app.web.server import serve

    args.output_dir.mkdir(parents=True, exist_ok=True)
    files = [args.output_dir / f"ui-{tab.lower().replace(' ', '-')}.png" for tab in SCENES]
    app = build_app(Models(find_models(args.model, None), data_root=args.data_root))
    url = serve(app, "127.0.0.1", None, None)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{url}?__theme=light")
        page.get_by_role("tab").first.wait_for(timeout=WAIT)
        for tab, file in zip(SCENES, files, strict=True):
            take(page, tab, file)
    app.close(verbose=False)
    return {"files": [str(file) for file in files]}


if __name__ == "__main__":
    sys.exit(run_script(main))
