"""Take screenshots of every page of the web app after a run, wide and narrow.

python tools/screenshots.py --output_dir docs
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from ebm_app.command_line import parse, run_script
from ebm_app.utils.fields import configuration, setting

#: Max waiting time in milliseconds
WAIT = 120_000
#: Colours of a screenshot, reduced to keep files small
NUM_COLOURS = 256
#: Page -> (button that starts the run, label and final text of its text box), or None
SCENES = {
    "Score": None,
    "Generate": ("Generate", "Run", r"^\d+ images in [\d.]+ s · (?!computing)"),
    "Toy": ("Train", "Run", "on test points"),
    "Mutual information": ("Learn", "Learned mutual information", "interval"),
    "Model": None,
}
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
).split()
#: playwright.sync_api.Page; playwright is an optional package
Page = Any


@contextmanager
def open_browser() -> Iterator["playwright.sync_api.Browser"]:  # noqa: F821 - an optional package
    """Start the installed Chromium with an empty profile, or otherwise that of Playwright."""
    from playwright.sync_api import sync_playwright

    command = next(filter(None, map(shutil.which, COMMANDS)), None)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=command, args=FLAGS)


def press(page: Page, name: str) -> None:
    """Click a visible button."""
    page.get_by_role("button", name=name).locator("visible=true").first.click()


def text_of(page: Page, label: str, pattern: str, wait: float = WAIT) -> str:
    """Return the text of a box once it matches, or raise an error after ``wait`` milliseconds."""
    from playwright.sync_api import expect

    box = page.get_by_label(label, exact=True).locator("visible=true").first
    expect(box).to_have_value(re.compile(pattern), timeout=wait)
    return box.input_value()


def draw(page: Page, points: Sequence[tuple[float, float]]) -> None:
    """Draw a stroke on the visible canvas."""
    canvas = page.locator("canvas:visible").first
    canvas.wait_for(timeout=WAIT)
    # the brush is ready later than the canvas
    page.get_by_role("button", name="Clear canvas").wait_for(timeout=WAIT)
    page.wait_for_timeout(1000)
    canvas.evaluate("canvas => canvas.scrollIntoView({ block: 'center' })")
    box = canvas.bounding_box()
    for number, (x, y) in enumerate(points):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=6)
        if not number:
            page.mouse.down()
    page.mouse.up()


def run_scene(page: Page, name: str) -> None:
    """Run the scene of a page and wait for the result."""
    if SCENES[name] is not None:
        button, label, pattern = SCENES[name]
        press(page, button)
        text_of(page, label, pattern)
    elif name == "Score":
        page.locator("#answer").get_by_text("unusual").wait_for(timeout=WAIT)
    else:
        page.locator(".card table").first.wait_for(timeout=WAIT)
    page.mouse.move(0, 0)
    # images load when scrolled into view, and plots appear after the text
    for place in ("document.body.scrollHeight", "0"):
        page.evaluate(f"window.scrollTo(0, {place})")
        page.wait_for_timeout(2000)


def save(pictures: Sequence[Image.Image], file: Path) -> None:
    """Save screenshots side by side, with reduced colours."""
    width, height = sum(image.width for image in pictures), max(image.height for image in pictures)
    sheet = Image.new("RGB", (width, height), "white")
    left = 0
    for image in pictures:
        sheet.paste(image, (left, 0))
        left += image.width
    sheet.quantize(NUM_COLOURS).save(file, optimize=True)


@configuration(kw_only=True)
class Arguments:
    model: str = setting("folder or bundled name", "mnist")
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    output_dir: Path = setting("folder for the screenshots", Path("runs/screenshots"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Serve the web app, visit every page, and write ui-<page>.png and ui-narrow.png."""
    args = parse(Arguments, __doc__, argv)
    # slow to import, and not needed for --help
    from ebm_app.web.__main__ import find_models
    from ebm_app.web.app import PAGES, build_app
    from ebm_app.web.models import Models
    from ebm_app.web.server import serve

    args.output_dir.mkdir(parents=True, exist_ok=True)
    app = build_app(Models(find_models(args.model, None), data_root=args.data_root))
    url, files = serve(app, "127.0.0.1", None, None), []

    def shoot(page: Page) -> Image.Image:
        return Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")

    with open_browser() as browser:
        names = tuple(PAGES)
        for width, shown, theme in ((1280, names, "light"), (390, names[:2], "dark")):
            page, pictures = browser.new_page(viewport={"width": width, "height": 800}), []
            for name in shown:
                page.goto(f"{url}{PAGES[name]}?__theme={theme}")
                run_scene(page, name)
                pictures.append(shoot(page))
                if shown is names:
                    files.append(args.output_dir / f"ui-{name.lower().replace(' ', '-')}.png")
                    save(pictures[-1:], files[-1])
        files.append(args.output_dir / "ui-narrow.png")
        save(pictures, files[-1])
    app.close(verbose=False)
    return {"files": [str(file) for file in files]}


if __name__ == "__main__":
    raise SystemExit(run_script(main))
