"""How long a visitor waits: for the page, the first picture, a grid of 16, and a log-likelihood.

python tools/times.py
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from browser import open_browser
from load import own_page

from ebm_app.runs.cli import Parser, run_script

WAIT, PAUSE = 120_000, 20  # milliseconds
Page = Any  # playwright.sync_api.Page, of an optional package


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Visit a page several times; the seconds of every visit."""
    parser = Parser(__doc__)
    parser.add_argument("--model", default="digits", help="a folder or a bundled name")
    parser.add_argument("--visits", type=int, default=3, help="visits, each of a new window")
    args = parser.parse_args(argv)
    with own_page(args.model) as (url, _), open_browser() as browser:
        visits = []
        for _ in range(args.visits):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            visits.append(visit(context.new_page(), url))
            context.close()
            print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in visits[-1].items()))
    return {"visits": visits}


def visit(page: Page, url: str) -> dict[str, float]:
    """Seconds of what a visitor does, in turn."""
    seconds = {"page": timed(lambda: page.goto(url), generate_button(page).is_visible)}
    begin = time.perf_counter()
    press = generate_button(page).click
    seconds["first_picture"] = timed(press, lambda: starts(page, "Run", ("Step", "16 images")))
    timed(lambda: None, lambda: starts(page, "Run", ("16 images",)))
    seconds["grid_of_16"] = time.perf_counter() - begin
    page.get_by_role("tab", name="Score", exact=True).click()
    page.get_by_role("tab", name="Upload", exact=True).click()
    page.locator(".gallery-item:visible").first.click()
    page.wait_for_timeout(1000)  # the example arrives
    button = page.get_by_role("button", name="Log-likelihood of the image", exact=True)
    seconds["log_likelihood"] = timed(
        button.click, lambda: starts(page, "Log-likelihood", ("Log-likelihood",))
    )
    return seconds


def generate_button(page: Page) -> Any:
    """What starts a run, the last of the first tab to come."""
    return page.get_by_role("button", name="Generate", exact=True)


def starts(page: Page, label: str, heads: tuple[str, ...]) -> bool:
    """Whether the text of a box is there and begins with one of these."""
    box = page.get_by_label(label, exact=True).locator("visible=true")
    return bool(box.count()) and box.first.input_value().startswith(heads)


def timed(act: Callable[[], Any], done: Callable[[], bool]) -> float:
    """Seconds from an act until it is done.

    Raises:
        TimeoutError: where that does not come.
    """
    begin = time.perf_counter()
    act()
    while not done():
        if time.perf_counter() - begin > WAIT / 1000:
            raise TimeoutError(f"nothing came in {WAIT / 1000:.0f} s")
        time.sleep(PAUSE / 1000)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(run_script(main))
