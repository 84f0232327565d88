"""A headless Chromium for the tests of pages, found where Debian, Ubuntu and others put it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

SECONDS = 120  # that a browser is waited for: on a machine that is busy with other things, too
NAMES = ("chromium", "chromium-browser", "google-chrome")
# No calls home: of a page's requests only its own are to be seen.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips, saying so, where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no {', '.join(NAMES)} on the PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page that remembers what went wrong on it, and what it asked for over the network."""

    def __init__(self, context: BrowserContext) -> None:
        context.set_default_timeout(1000 * SECONDS)
        expect.set_options(timeout=1000 * SECONDS)
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.requests.append(request.url)
