"""Pictures of every tab of the page, at work with a model.

python ui/screenshots.py --output_dir docs
"""

import re
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from browser import open_browser
from PIL import Image

from ebm_app.io.command_line import parse
from ebm_app.io.fields import configuration, setting
from ebm_app.io.start import run_script

WAIT = 600_000  # milliseconds
#: colours of a picture, which keep a file small
NUM_COLOURS = 128
Page = Any  # playwright.sync_api.Page, of an optional package


def draw_images(page: Page) -> None:
    """A grid of images."""
    press(page, "Generate")
    page.locator("a[download$='.zip']").wait_for(timeout=WAIT)


def score_example(page: Page) -> None:
    """A held-out image."""
    open_tab(page, "Upload")
    page.locator(".small img").first.click()
    page.get_by_alt_text("The image that was uploaded").wait_for(timeout=WAIT)
    press(page, "Is the image ordinary?")
    wait_for(page, "Answer", "bits per dim")
    page.get_by_role("button", name="Details").click()
    wait_for(page, "Log-likelihood", r"over 16 draws")


def complete_drawing(page: Page) -> None:
    """The upper half of a digit, drawn by the mouse, and lower halves for it."""
    canvas = page.locator("canvas:visible").first
    canvas.wait_for(timeout=WAIT)
    page.wait_for_timeout(1000)
    box = canvas.bounding_box()
    middle, top = box["x"] + box["width"] / 2, box["y"] + 115
    page.mouse.move(middle - 45, top)
    page.mouse.down()
    for x, y in ((middle, top - 25), (middle + 40, top), (middle + 25, top + 80)):
        page.mouse.move(x, y, steps=8)
    page.mouse.up()
    press(page, "Complete")
    wait_for(page, "Run", r"^Step (\d+) of \1 ")


def train(page: Page) -> None:
    """A training to its end."""
    press(page, "Train")
    wait_for(page, "Run", r"^\d+ steps")


def estimate(page: Page) -> None:
    """The example that is there."""
    press(page, "Estimate")
    wait_for(page, "Estimate", r"rows, 1 \+ 1 columns")


def diagnose(page: Page) -> None:
    """The self-test."""
    press(page, "Run the self-test")
    wait_for(page, "Result of the self-test", "checks passed")


#: what to do on each tab before its picture is taken
ACTIONS: dict[str, Callable[[Page], None]] = {
    "Generate": draw_images,
    "Score": score_example,
    "Complete": complete_drawing,
    "Toy": train,
    "Mutual information": estimate,
    "Diagnostics": diagnose,
}


def open_tab(page: Page, name: str) -> None:
    """Open a tab of the page."""
    page.get_by_role("tab", name=name, exact=True).click()


def press(page: Page, name: str) -> None:
    """Press a button of the tab that is open."""
    page.get_by_role("button", name=name, exact=True).locator("visible=true").click()


def wait_for(page: Page, label: str, pattern: str) -> None:
    """Wait until the text of a box is what it should be; an error on the page ends the wait."""
    box = page.get_by_label(label, exact=True).locator("visible=true").first
    for _ in range(WAIT // 200):
        if page.get_by_test_id("toast-body").count():
            raise RuntimeError(page.get_by_test_id("toast-body").first.inner_text())
        if box.count() and re.search(pattern, box.input_value()):
            return
        page.wait_for_timeout(200)
    raise TimeoutError(f"'{label}' did not become {pattern}: {box.input_value()}")


def take(page: Page, tab: str, file: Path) -> None:
    """A picture of a tab, in few colours."""
    open_tab(page, tab)
    page.wait_for_timeout(1000)
    ACTIONS[tab](page)
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
    folder = args.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    # seconds to import: --help does without
    from ebm_app.web.app import build_app
    from ebm_app.web.models import Models, find_models
    from ebm_app.web.server import serve

    app = build_app(Models(find_models(args.model, None), data_root=args.data_root))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = serve(app, "127.0.0.1", port, None)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{url}?__theme=light")
        page.get_by_role("tab").first.wait_for(timeout=WAIT)
        for tab in ACTIONS:
            files.append(folder / f"ui-{tab.lower().replace(' ', '-')}.png")
            take(page, tab, files[-1])
    app.close(verbose=False)
    return {"files": [str(file) for file in files]}


if __name__ == "__main__":
    sys.exit(run_script(main))
