"""A headless browser for the page: its pictures in the documentation, and its tests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]


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
