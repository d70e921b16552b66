"""A headless browser for the page: its pictures in the documentation, and its tests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from ebm_app.io.errors import UserError

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]


@contextmanager
def open_browser() -> Iterator["playwright.sync_api.Browser"]:  # noqa: F821 - an optional package
    """The Chromium of this machine, with an empty profile; Playwright's own where there is none.

    Raises:
        UserError: where Playwright or a browser is missing.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise UserError("Playwright is missing: pip install -e '.[test]'") from None
    found = next(filter(None, map(shutil.which, COMMANDS)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        except Error as error:
            raise UserError(
                f"no browser starts ({str(error).splitlines()[0]}): install Chromium, or "
                "python -m playwright install chromium"
            ) from None
        try:
            yield browser
        finally:
            browser.close()
