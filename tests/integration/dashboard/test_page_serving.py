"""The page where it is served: by the coordinator, alone, and on the demonstration."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from strata.cli.app import main
from strata.dashboard.site import STATIC, Site
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import end, read_line, start

if TYPE_CHECKING:
    from pathlib import Path


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=stretch(30)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def run_strata(*arguments: str) -> subprocess.Popen[str]:
    return start(
        [sys.executable, "-m", "strata", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_unknown_address_of_the_api_is_never_the_page(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        status, body = get(f"{coordinator.http_url}/api/no-such-thing")
        assert status == 404
        assert "there is no /api/no-such-thing" in json.loads(body)["detail"]
        assert get(f"{coordinator.http_url}/metrics")[1].startswith("# HELP")
        status, body = get(coordinator.http_url)
        if (STATIC / "index.html").exists():
            assert (status, 'id="root"' in body) == (200, True)
        else:
            assert (status, "make dashboard" in body) == (404, True)


@pytest.mark.part("dashboard")
def test_alone_it_serves_the_page_and_forwards_the_api_of_a_coordinator_that_may_be_away(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    process = run_strata("dashboard", "--coordinator", coordinator.http_url, "--port", "0")
    try:
        url = read_line(process).split()[-1]
        assert 'id="root"' in get(f"{url}/workers")[1]
        status, body = get(f"{url}/api/health")
        assert status == 502
        assert f"the coordinator at {coordinator.http_url} does not answer" in json.loads(body)["detail"]
        with coordinator.serving():
            assert get(f"{url}/api/health")[0] == 200
        process.send_signal(signal.SIGINT)
        process.wait(stretch(20))
    finally:
        end(process)


@pytest.mark.part("dashboard")
def test_alone_it_gets_in_with_its_own_token_or_with_the_one_that_the_page_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "admin-token"
    coordinator = CoordinatorProcess(tmp_path, "--admin-token-file", str(file))
    arguments = ("dashboard", "--coordinator", coordinator.http_url, "--port", "0")
    with coordinator.serving():
        without = run_strata(*arguments)
        monkeypatch.setenv("STRATA_TOKEN_FILE", str(file))
        with_own = run_strata(*arguments)
        try:
            admin = f"Bearer {file.read_text().strip()}"
            url = read_line(without).split()[-1]
            assert get(f"{url}/api/jobs")[0] == 401
            assert get(f"{url}/api/jobs", Authorization=admin)[0] == 200
            url = read_line(with_own).split()[-1]
            assert get(f"{url}/api/jobs")[0] == 200
            # The page's token is forwarded alone: a wrong one is not made good by the other.
            status, body = get(f"{url}/api/jobs", Authorization="Bearer wrong")
            assert (status, "its token is not known" in body) == (401, True)
            # A password is for a proxy in front, and stays there.
            assert get(f"{url}/api/jobs", Authorization="Basic dXNlcjpwYXNz")[0] == 200
        finally:
            end(without)
            end(with_own)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--coordinator", "ftp://host"), 2, "use http://HOST:8080"),
        (("--coordinator", "http://host/prefix"), 2, "use http://HOST:8080"),
        (("--port", "70000"), 2, "65535"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_line(arguments: tuple[str, ...], code: int, message: str) -> None:
    process = run_strata("dashboard", *arguments)
    _, errors = process.communicate(timeout=stretch(60))
    assert process.returncode == code
    assert message in errors
    assert "Traceback" not in errors


def test_a_page_that_is_not_built_is_not_served(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Site, "is_built", False)
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", "--port", "0"])
    assert ended.value.code == 1
    shown = "strata dashboard: the page is not built; in a clone of the repository: make dashboard\n"
    assert capsys.readouterr() == ("", shown)


@pytest.mark.part("dashboard")
def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        process = run_strata("dashboard", "--port", str(coordinator.http_port))
        _, errors = process.communicate(timeout=stretch(60))
    assert process.returncode == 1
    assert f"dashboard cannot listen on 127.0.0.1:{coordinator.http_port}" in errors


def test_the_demonstration_says_where_its_dashboard_is_and_ends_with_ctrl_c() -> None:
    process = run_strata("demo", "--dashboard")
    try:
        url = read_line(process).split()[-1]
        assert json.loads(get(f"{url}/api/health")[1])["status"] == "ok"
        process.send_signal(signal.SIGINT)
        assert process.wait(stretch(60)) == 130
    finally:
        end(process)
