"""Pictures of every tab of the page, at work with a model.

python ui/screenshots.py --output_dir docs
"""

import re
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from ebm_app.io.command_line import parse
from ebm_app.io.fields import configuration, setting
from ebm_app.io.start import run_script

WAIT = 600_000  # milliseconds
#: colours of a picture, which keep a file small
NUM_COLOURS = 128
#: by tab: what is clicked on first, the button, and the box that then holds a text like this
SCENES = {
    "Generate": ("", "Generate", "Run", r"^\d+ images"),
    "Score": (".small img", "Is the image ordinary?", "Log-likelihood", "over 16 draws"),
    "Complete": ("", "Complete", "Run", r"^Step (\d+) of \1 "),
    "Toy": ("", "Train", "Run", r"^\d+ steps"),
    "Mutual information": ("", "Estimate", "Estimate", r"rows, 1 \+ 1 columns"),
    "Diagnostics": ("", "Run the self-test", "Result of the self-test", "checks passed"),
}
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
Page = Any  # playwright.sync_api.Page, of an optional package


@contextmanager
def open_browser() -> Iterator["playwright.sync_api.Browser"]:  # noqa: F821 - an optional package
    """The Chromium of this machine, with an empty profile; or Playwright's own."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, COMMANDS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def draw_a_part(page: Page) -> None:
    """The upper half of a digit, by the mouse."""
    box = page.locator("canvas:visible").first.bounding_box()
    middle, top = box["x"] + box["width"] / 2, box["y"] + 115
    page.mouse.move(middle - 45, top)
    page.mouse.down()
    for x, y in ((middle, top - 25), (middle + 40, top), (middle + 25, top + 80)):
        page.mouse.move(x, y, steps=8)
    page.mouse.up()


def take(page: Page, tab: str, file: Path) -> None:
    """A picture of a tab after its scene, in few colours."""
    first, button, label, pattern = SCENES[tab]
    page.get_by_role("tab", name=tab, exact=True).click()
    page.wait_for_timeout(2000)
    if tab == "Complete":
        draw_a_part(page)
    if first:
        page.get_by_role("tab", name="Upload", exact=True).click()
        page.get_by_role("button", name="Details").click()
        page.locator(first).first.click()
        page.get_by_alt_text("The image that was uploaded").wait_for(timeout=WAIT)
    page.get_by_role("button", name=button, exact=True).locator("visible=true").click()
    box = page.get_by_label(label, exact=True).locator("visible=true").first
    for _ in range(WAIT // 200):
        if re.search(pattern, box.input_value()):
            break
        page.wait_for_timeout(200)
    else:
        raise TimeoutError(f"'{label}' did not become {pattern}: {box.input_value()}")
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = serve(app, "127.0.0.1", port, None)
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
