"""A real Chromium: pages that fail the test if a script fails in them, or if they load what their policy forbids."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scripts.parts import DASHBOARD
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page

# Never reached by a page that works; how long it takes is no one's business here.
WAIT_S = 40.0
AXE = DASHBOARD / "node_modules" / "axe-core" / "axe.min.js"
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser that Debian ships; playwright's own would be downloaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=1_000 * stretch(WAIT_S)
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """Open a page of its own; leaving the block fails if a script of it failed, or broke its policy."""
    context = browser.new_context(viewport=options.pop("viewport", DESKTOP), **options)
    context.set_default_timeout(1_000 * stretch(WAIT_S))
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    # A request that finds no coordinator is an error there too, and what a test may be about.
    page.on(
        "console",
        lambda message: (
            faults.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    try:
        yield page
        assert faults == []
    finally:
        context.close()


def expect_text(place: Locator | Page, text: str) -> None:
    """Wait until the text is there."""
    place.get_by_text(text).first.wait_for(timeout=1_000 * stretch(WAIT_S))


def find_barriers_for_people(page: Page) -> list[str]:
    """Return what axe finds serious or critical on the page as it is now: what keeps someone from using it."""
    page.evaluate(AXE.read_text() + "; undefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {rule['help']}: {[node['html'][:200] for node in rule['nodes'][:3]]}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
