"""Take a screenshot of every tab of the page after a run.

python tools/screenshots.py --output_dir docs
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from ebm_app.cli.command_line import parse, run_script
from ebm_app.utils.fields import configuration, setting

#: Milliseconds
WAIT = 600_000
#: Colours of a screenshot; few keep the file small
NUM_COLOURS = 128
#: By tab: the button that starts the run, and the label and final text of its text box
SCENES = {
    "Generate": ("Generate", "Run", r"^\d+ images"),
    "Score": ("Score the image", "Answer", "bits per dim"),
    "Complete": ("Complete", "Run", r"^Step (\d+) of \1 "),
    "Toy": ("Train", "Run", r"^\d+ steps"),
    "Mutual information": ("Estimate", "Estimate", r"rows, 1 \+ 1 columns"),
}
#: Tabs in their order; the last one has no run
TABS = (*SCENES, "Diagnostics")
#: Points of a stroke, as shares of the canvas
HALF_A_DIGIT = ((0.37, 0.35), (0.5, 0.25), (0.64, 0.35), (0.6, 0.6))
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = "--no-sandbox --disable-background-networking --disable-component-update".split()
#: playwright.sync_api.Page; playwright is an optional package
Page = Any


@contextmanager
def open_browser() -> Iterator["playwright.sync_api.Browser"]:  # noqa: F821 - an optional package
    """Start the installed Chromium with an empty profile, or Playwright's own if there is none."""
    from playwright.sync_api import sync_playwright

    command = next(filter(None, map(shutil.which, COMMANDS)), None)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=command, args=FLAGS)


def open_tab(page: Page, name: str) -> None:
    """Open a tab, which narrow windows hide behind "More tabs"."""
    tab = page.get_by_role("tab", name=name, exact=True)
    if not tab.count():
        page.get_by_role("button", name="More tabs").click()
        tab = page.locator(".overflow-dropdown:visible").get_by_role("button", name=name)
    tab.click()


def press(page: Page, name: str) -> None:
    """Press a visible button."""
    page.get_by_role("button", name=name).locator("visible=true").first.click()


def text_of(page: Page, label: str, pattern: str, wait: float = WAIT) -> str:
    """Return the text of a box once it matches, or raise after ``wait`` milliseconds."""
    from playwright.sync_api import expect

    box = page.get_by_label(label, exact=True).locator("visible=true").first
    expect(box).to_have_value(re.compile(pattern), timeout=wait)
    return box.input_value()


def draw(page: Page, points: Sequence[tuple[float, float]]) -> None:
    """Draw a stroke on the visible canvas."""
    canvas = page.locator("canvas:visible").first
    canvas.wait_for(timeout=WAIT)
    undo = page.get_by_role("button", name="Undo", exact=True).locator("visible=true")
    for _ in range(100):  # the brush is ready some time after the canvas
        box = canvas.bounding_box()
        for number, (x, y) in enumerate(points):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=12)
            if not number:
                page.mouse.down()
        page.mouse.up()
        page.wait_for_timeout(500)
        if undo.is_enabled():
            return
    raise TimeoutError("the canvas accepts no stroke")


def take(page: Page, tab: str, file: Path) -> None:
    """Run the scene of a tab, if it has one, and save a screenshot."""
    open_tab(page, tab)
    page.wait_for_timeout(2000)
    if tab == "Complete":
        draw(page, HALF_A_DIGIT)
    if tab == "Score":
        open_tab(page, "Upload")
        page.locator(".small img").first.click()
        page.get_by_alt_text("The uploaded image").wait_for(timeout=WAIT)
    if tab in SCENES:
        button, label, pattern = SCENES[tab]
        press(page, button)
        text_of(page, label, pattern)
    else:
        page.get_by_role("cell", name="weights").wait_for(timeout=WAIT)
    page.mouse.move(0, 0)
    # images load when they are scrolled into view
    for place in ("document.body.scrollHeight", "0"):
        page.evaluate(f"window.scrollTo(0, {place})")
        page.wait_for_timeout(1000)
    page.screenshot(path=file, full_page=True)
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(NUM_COLOURS)
    small.save(file, optimize=True)


@configuration(kw_only=True)
class Arguments:
    """Command-line arguments."""

    model: str = setting("folder or bundled name", "mnist")
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    output_dir: Path = setting("folder of the screenshots", Path("runs/screenshots"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Serve the page, visit every tab, and write ui-<tab>.png."""
    args = parse(Arguments, __doc__, argv)
    # gradio takes seconds to import, and --help does not need it
    from ebm_app.web.app import build_app
    from ebm_app.web.models import Models, find_models
    from ebm_app.web.server import serve

    args.output_dir.mkdir(parents=True, exist_ok=True)
    files = [args.output_dir / f"ui-{tab.lower().replace(' ', '-')}.png" for tab in TABS]
    app = build_app(Models(find_models(args.model, None), data_root=args.data_root))
    url = serve(app, "127.0.0.1", None, None)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{url}?__theme=light")
        page.get_by_role("tab").first.wait_for(timeout=WAIT)
        for tab, file in zip(TABS, files, strict=True):
            take(page, tab, file)
    app.close(verbose=False)
    return {"files": [str(file) for file in files]}


if __name__ == "__main__":
    raise SystemExit(run_script(main))
