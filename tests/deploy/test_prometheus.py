"""What deploy/ holds for Prometheus and Grafana, against a real Prometheus: metrics, alert rules, and each query."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.parts import find_program
from strata.client.client import Client
from strata.cluster.commands import WorkerState
from strata.cluster.values import SaveNote, WorkerAccount
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports, running
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.part("prometheus"), pytest.mark.timeout(300)]
DEPLOY = Path(__file__).parents[2] / "deploy"
PANELS = json.loads((DEPLOY / "grafana" / "strata.json").read_text())
QUERIES = [target["expr"] for panel in PANELS["panels"] for target in panel["targets"]] + [
    each["expr"] for each in PANELS["annotations"]["list"]
]


def promtool(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    program = find_program("promtool")
    assert program is not None
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=stretch(60), check=False, **options
    )


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=stretch(20)) as response:
        text: str = response.read().decode()
    return text


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """A coordinator with a job that has trained, met and saved."""
    process = CoordinatorProcess(tmp_path_factory.mktemp("coordinator"))
    with process.serving(), Client(process.url, "a", job_id="scraped", keep_alive_s=0) as client:
        client.wait_registered()
        save = SaveNote(5, 0.1, 0.2, 0.3, 0.4, 1_000, is_failed=False, is_diverged=False)
        account = WorkerAccount(10.0, 8.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 50, 0, 500, 1, 0, (save,))
        client.heartbeat(
            state=WorkerState.TRAINING, step=50, resources={"step_s": 0.2, "samples_per_s": 50.0}, account=account
        )
        client.meet("here", timeout_s=stretch(30))
        yield process


@pytest.fixture(scope="module")
def prometheus(coordinator: CoordinatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus that scrapes the coordinator, with the rules of deploy/."""
    folder = tmp_path_factory.mktemp("prometheus")
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    text = text.replace("localhost:8080", f"127.0.0.1:{coordinator.http_port}").replace("15s", "1s")
    (folder / "prometheus.yml").write_text(text)
    (folder / "rules.yml").write_text((DEPLOY / "prometheus" / "rules.yml").read_text())
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]

    def is_ready() -> bool:
        try:
            return "Ready" in read(f"{url}/-/ready")
        except OSError:
            return False

    with running(command, log=folder / "log", is_ready=is_ready):
        yield url


def query(url: str, expression: str) -> list[Any]:
    answer = json.loads(read(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
    assert answer["status"] == "success", answer
    found: list[Any] = answer["data"]["result"]
    return found


def test_the_metrics_are_named_and_described_as_prometheus_wants_them(coordinator: CoordinatorProcess) -> None:
    checked = promtool("check", "metrics", input=read(f"{coordinator.http_url}/metrics"))
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_alert_rules_are_valid_and_fire_when_they_should() -> None:
    folder = DEPLOY / "prometheus"
    assert promtool("check", "rules", str(folder / "rules.yml")).returncode == 0
    tested = promtool("test", "rules", "rules.test.yml", cwd=folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_test() -> None:
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    tests = (DEPLOY / "prometheus" / "rules.test.yml").read_text()
    alerts = [line.partition("alert: ")[2] for line in rules.splitlines() if "alert: " in line]
    assert alerts
    assert [alert for alert in alerts if f"alertname: {alert}" not in tests] == []


def test_a_real_prometheus_scrapes_the_coordinator_and_loads_the_rules(prometheus: str) -> None:
    wait_until(lambda: bool(query(prometheus, "strata_job_step")), "it is scraped")
    (up,) = query(prometheus, 'up{job="strata"}')
    assert up["value"][1] == "1"
    (step,) = query(prometheus, 'strata_job_step{job_id="scraped"}')
    assert step["value"][1] == "50"
    wait_until(lambda: bool(query(prometheus, "strata_save_phase_seconds_count > 0")), "its saves are counted")
    rules = json.loads(read(f"{prometheus}/api/v1/rules"))["data"]["groups"][0]["rules"]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_of_the_grafana_dashboard_runs(prometheus: str, expression: str) -> None:
    query(prometheus, expression.replace("$__rate_interval", "1m").replace("$job_id", ".*"))


def test_every_metric_that_is_asked_for_exists(coordinator: CoordinatorProcess) -> None:
    import re

    served = read(f"{coordinator.http_url}/metrics")
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    asked = set(re.findall(r"strata_[a-z_]+", " ".join(QUERIES) + rules))
    families = set(re.findall(r"# TYPE (strata_[a-z_]+)", served))
    families |= {f"{name}{suffix}" for name in families for suffix in ("_bucket", "_count", "_sum")}
    assert asked - families == set()


def test_a_thousand_workers_add_no_series(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    def count() -> int:
        return sum(not line.startswith("#") for line in read(f"{coordinator.http_url}/metrics").splitlines())

    before = count()
    clients = [Client(coordinator.url, f"w{number}", job_id="scraped", keep_alive_s=0) for number in range(5)]
    try:
        for client in clients:
            client.wait_registered(stretch(30))
        assert count() == before
    finally:
        for client in clients:
            client.close()
