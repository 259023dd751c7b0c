"""Signing in on the page, in a real browser, at a real coordinator that lets nobody in without a token."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.integration.dashboard.browser import PHONE, expect_text, find_barriers_for_people, opened
from tests.testbed.client_process import worker_process
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import end, read_line, run_program, start

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.part("dashboard"), pytest.mark.part("browser")]

ASKS = "This coordinator asks for a token"
KEPT = "[sessionStorage.getItem('strata.token'), localStorage.length, document.cookie]"


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CoordinatorProcess:
    """A coordinator that asks everyone; this process and those that it starts have the administrator's token."""
    monkeypatch.setenv("STRATA_TOKEN_FILE", str(tmp_path / "admin-token"))
    return CoordinatorProcess(tmp_path, "--admin-token-file", str(tmp_path / "admin-token"))


def run_strata(*arguments: str) -> str:
    command = [sys.executable, "-m", "strata", *arguments]
    return run_program(command, check=True, stdout=subprocess.PIPE, text=True, timeout=stretch(60)).stdout


def make_viewer(coordinator: CoordinatorProcess) -> tuple[str, str]:
    """Make a token as the page says; return its id and the token."""
    made = json.loads(run_strata("token", "create", "--role", "viewer", "--json", "--coordinator", coordinator.url))
    return made["token_id"], made["token"]


def give(page: Page, token: str) -> None:
    """Type a token into the field that has the focus, and press Enter."""
    page.wait_for_function("document.activeElement.type === 'password'")
    page.keyboard.type(token)
    page.keyboard.press("Enter")


def test_a_token_lets_in_until_it_is_given_up_or_revoked(coordinator: CoordinatorProcess, browser: Browser) -> None:
    with coordinator.serving(), worker_process(coordinator.url, "worker-0"), opened(browser) as page:
        token_id, token = make_viewer(coordinator)
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(f"{coordinator.http_url}/workers")
        expect_text(page, ASKS)
        expect_text(page, "strata token create --role viewer")
        assert page.get_by_text("worker-0").count() == 0

        give(page, f"{token}x")
        expect_text(page.get_by_role("alert"), "The coordinator refuses this token")
        assert page.evaluate(KEPT) == [None, 0, ""]

        give(page, token)
        expect_text(page.get_by_role("row"), "worker-0")
        # Events are pushed to a page with a token too.
        expect_text(page.get_by_test_id("freshness"), "Live")
        page.reload()
        expect_text(page.get_by_role("row"), "worker-0")
        assert page.evaluate(KEPT) == [token, 0, ""]

        page.get_by_role("button", name="Sign out").click()
        expect_text(page.get_by_role("status"), "You are signed out.")
        assert page.get_by_text("worker-0").count() == 0
        assert page.evaluate(KEPT) == [None, 0, ""]

        give(page, token)
        expect_text(page.get_by_role("row"), "worker-0")
        run_strata("token", "revoke", token_id, "--coordinator", coordinator.url)
        expect_text(page.get_by_role("alert"), "The coordinator no longer accepts your token")
        expect_text(page, ASKS)
        assert page.get_by_text("worker-0").count() == 0
        assert page.evaluate(KEPT) == [None, 0, ""]

        assert any(urlsplit(address).path == "/api/events" for address in addresses)
        assert not [address for address in addresses if token in address]
    assert token.encode() not in coordinator.log()


def test_a_page_that_is_served_alone_signs_in_at_its_coordinator(
    coordinator: CoordinatorProcess, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coordinator.serving(), worker_process(coordinator.url, "worker-0"):
        _, token = make_viewer(coordinator)
        monkeypatch.delenv("STRATA_TOKEN_FILE")
        command = [sys.executable, "-m", "strata", "dashboard", "--coordinator", coordinator.http_url, "--port", "0"]
        process = start(command, stdout=subprocess.PIPE, text=True)
        try:
            with opened(browser) as page:
                page.goto(f"{read_line(process).split()[-1]}/workers")
                expect_text(page, ASKS)
                give(page, token)
                expect_text(page.get_by_role("row"), "worker-0")
                expect_text(page.get_by_test_id("freshness"), "Live")
        finally:
            end(process)


def test_the_form_asks_nothing_by_itself(coordinator: CoordinatorProcess, browser: Browser) -> None:
    """Each refused request is told to administrators, and slows the answers to this address down."""
    with coordinator.serving(), opened(browser) as page:
        page.clock.install()
        page.goto(coordinator.http_url)
        expect_text(page, ASKS)
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        page.clock.run_for(60_000)
        # An answer that is heard after a minute of the page's time is the only one that was asked for.
        give(page, "wrong")
        expect_text(page.get_by_role("alert"), "The coordinator refuses this token")
        assert [urlsplit(address).path for address in addresses] == ["/api/jobs"]


def test_the_form_can_be_used_by_everyone(coordinator: CoordinatorProcess, browser: Browser) -> None:
    with coordinator.serving():
        for scheme in ("light", "dark"):
            with opened(browser, color_scheme=scheme, viewport=PHONE) as page:
                page.goto(coordinator.http_url)
                expect_text(page, ASKS)
                assert page.get_by_label("Token").get_attribute("autocomplete") == "off"
                assert find_barriers_for_people(page) == [], scheme
                give(page, "wrong")
                expect_text(page.get_by_role("alert"), "The coordinator refuses this token")
                assert find_barriers_for_people(page) == [], f"{scheme}, refused"
                assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")
