"""The dashboard in a real browser, on a real coordinator with real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.dashboard.browser import PHONE, WAIT_S, expect_text, find_barriers_for_people, opened
from tests.testbed.client_process import WORKER, worker_process
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import Job
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.part("dashboard"), pytest.mark.part("browser")]

PAGES = ["", "workers", "data", "checkpoints", "barriers", "charts", "events", "compare"]
SCRIPT = "<script>document.title = 'owned'</script>"
# The coordinator takes no invisible characters, but letters that are written from right to left.
HOSTILE = f"{SCRIPT} \u05d0\u05d1\u05d2 <b>"
LONG = "w" * 128

AT_BARRIER = WORKER.replace("    stay()", "    client.meet(sys.argv[3], timeout_s=600)\n    stay()")


def row(page: Page, worker_id: str) -> Locator:
    return page.get_by_role("row").filter(has_text=worker_id)


def test_a_killed_worker_is_shown_and_so_is_its_return(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path, "--grace", "0.5")
    with (
        coordinator.serving(),
        Job(tmp_path, coordinator.url, epochs=1_000, save_every="50 steps") as job,
        opened(browser) as page,
    ):
        job.start("worker-0", "worker-1")
        page.goto(f"{coordinator.http_url}/workers")
        expect_text(row(page, "worker-0"), "Training")
        expect_text(row(page, "worker-1"), "Training")
        job.kill("worker-1")
        expect_text(row(page, "worker-1"), "Failed")
        page.get_by_role("link", name="Overview").click()
        expect_text(page.get_by_role("list", name="Needs attention"), "worker-1 failed and has not come back")
        page.get_by_role("link", name="Events").first.click()
        page.get_by_label("Failures only").check()
        expect_text(page.get_by_role("region", name="Events"), "worker-1")
        job.start("worker-1")
        page.get_by_role("link", name="Workers").click()
        expect_text(row(page, "worker-1"), "Training")


def test_a_barrier_that_waits_names_who_is_missing(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with (
        coordinator.serving(),
        worker_process(coordinator.url, "late-one"),
        worker_process(coordinator.url, "early-one", "epoch_1", script=AT_BARRIER),
        opened(browser) as page,
    ):
        page.goto(f"{coordinator.http_url}/barriers")
        barrier = page.get_by_role("article").filter(has_text="epoch_1")
        expect_text(barrier, "1 of 2 arrived")
        expect_text(barrier, "late-one")
        assert barrier.get_by_text("early-one").count() == 0
        page.get_by_role("link", name="Overview").click()
        expect_text(page, "Barrier epoch_1 waits for late-one")


def test_a_coordinator_that_goes_away_makes_the_numbers_old_until_it_is_back(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with opened(browser) as page:
        with coordinator.serving(), worker_process(coordinator.url, "worker-0"):
            page.goto(coordinator.http_url)
            expect_text(page.get_by_test_id("freshness"), "Live")
            expect_text(page, "1 worker")
            expect_text(page, "Nothing needs attention.")
        expect_text(page, "These numbers are old.")
        expect_text(page, "what needs it now is not known")
        assert page.get_by_text("Nothing needs attention.").count() == 0
        expect_text(page.get_by_test_id("freshness"), "Last answer")
        with coordinator.serving():
            expect_text(page.get_by_test_id("freshness"), "Live")
            page.get_by_text("These numbers are old.").wait_for(state="detached", timeout=1_000 * stretch(WAIT_S))


def test_a_coordinator_without_a_job_says_how_to_start_one(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving(), opened(browser) as page:
        for name in PAGES[:-2]:
            page.goto(f"{coordinator.http_url}/{name}")
            expect_text(page, "No job yet")
        page.goto(f"{coordinator.http_url}/?job=no-such-job")
        expect_text(page, "No such job")
        expect_text(page.get_by_test_id("freshness"), "Not found")
        page.get_by_role("button", name="Show the busiest job").click()
        expect_text(page, "No job yet")


def test_hostile_names_are_text(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with (
        coordinator.serving(),
        worker_process(coordinator.url, LONG),
        worker_process(coordinator.url, "worker-0", HOSTILE, script=AT_BARRIER),
        opened(browser, viewport=PHONE) as page,
    ):
        page.goto(f"{coordinator.http_url}/barriers")
        expect_text(page.get_by_role("article"), HOSTILE)
        expect_text(page, LONG)
        assert_fits(page)
        page.goto(coordinator.http_url)
        expect_text(page, f"Barrier {HOSTILE} waits for {LONG}")
        assert_fits(page)
        page.goto(f"{coordinator.http_url}/workers")
        expect_text(page, LONG)
        assert_fits(page)
        page.goto(f"{coordinator.http_url}/charts?search=<img src=x onerror=alert(1)>")
        page.get_by_role("searchbox").wait_for()
        assert page.get_by_role("searchbox").input_value() == "<img src=x onerror=alert(1)>"
        assert page.locator("img, main script").count() == 0
        assert "owned" not in page.title()


def test_every_page_can_be_used_by_everyone(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving(), Job(tmp_path, coordinator.url, epochs=1_000, save_every="50 steps") as job:
        job.start("worker-0", "worker-1")
        job.wait_until(lambda: job.step() > 12, "a few steps")
        job.kill("worker-1")
        for scheme in ("light", "dark"):
            with opened(browser, color_scheme=scheme) as page:
                for name in PAGES:
                    page.goto(f"{coordinator.http_url}/{name}")
                    page.get_by_test_id("freshness").get_by_text("Live").wait_for()
                    assert find_barriers_for_people(page) == [], f"{name} in {scheme}"


def test_every_page_fits_a_phone(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with (
        coordinator.serving(),
        Job(tmp_path, coordinator.url, epochs=1_000, save_every="50 steps") as job,
        opened(browser, viewport=PHONE) as page,
    ):
        job.start("worker-0")
        job.wait_until(lambda: job.step() > 12, "a few steps")
        for name in PAGES:
            page.goto(f"{coordinator.http_url}/{name}")
            page.get_by_test_id("freshness").get_by_text("Live").wait_for()
            assert_fits(page)


def test_it_is_used_by_keyboard_alone_and_remembers_the_theme(tmp_path: Path, browser: Browser) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with (
        coordinator.serving(),
        worker_process(coordinator.url, "worker-0"),
        worker_process(coordinator.url, "worker-1"),
        opened(browser) as page,
    ):
        page.goto(coordinator.http_url)
        expect_text(page.get_by_test_id("freshness"), "Live")
        page.keyboard.press("Tab")
        page.wait_for_function("document.activeElement.textContent === 'Skip to content'")
        page.get_by_role("link", name="Workers").focus()
        page.keyboard.press("Enter")
        expect_text(page, "worker-1")
        header = page.get_by_role("columnheader", name="Worker")
        for order, first in (("ascending", "worker-0"), ("descending", "worker-1")):
            header.get_by_role("button").focus()
            page.keyboard.press("Enter")
            page.locator(f"[role=columnheader][aria-sort={order}]").filter(has_text="Worker").wait_for()
            page.get_by_role("row").nth(1).filter(has_text=first).wait_for()
        page.get_by_role("button", name="Dark").focus()
        page.keyboard.press("Enter")
        page.reload()
        expect_text(page, "worker-1")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def assert_fits(page: Page) -> None:
    """Nothing makes the page wider than the screen; what is wider scrolls in a box of its own."""
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")
