"""The HTTP API of a real coordinator, with real clients: what it answers, refuses, and streams."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from strata.client.client import Client
from strata.cluster.commands import ConfirmCommit, RegisterDataset, ReportPart, WorkerState
from strata.cluster.events import Cause
from strata.cluster.values import CommitRecord, Divergence, PartReport, Span, WorkerAccount
from tests.testbed.coordinator import CoordinatorProcess, ServedCoordinator, serving_in_thread
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE = "<script>alert(1)</script>\u05d0" + "x" * 90


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCoordinator]:
    with serving_in_thread(tmp_path_factory.mktemp("http")) as coordinator:
        yield coordinator


def ask(
    coordinator: CoordinatorProcess | ServedCoordinator, path: str, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Return status, JSON and headers of an answer."""
    request = urllib.request.Request(coordinator.http_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=stretch(20)) as response:
            body = response.read()
            return response.status, json.loads(body) if body else None, dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
            return error.code, json.loads(body) if body else None, dict(error.headers)


def get(coordinator: CoordinatorProcess | ServedCoordinator, path: str) -> Any:
    status, body, _ = ask(coordinator, path)
    assert status == 200, body
    return body


def account(elapsed_s: float, *, steps: int) -> WorkerAccount:
    return WorkerAccount(elapsed_s, elapsed_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, steps, 0, 0, 1, 0)


def test_a_coordinator_without_jobs_is_healthy_and_its_page_is_empty(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    with process.serving():
        assert get(process, "/api/health")["status"] == "ok"
        ready = {"ready": True, "reason": "", "role": "leader", "leader": process.url, "term": 0}
        assert get(process, "/api/ready") == ready
        page = get(process, "/api/dashboard")
        assert (page["job"], page["workers"], page["jobs"]) == (None, [], [])
        status, body, _ = ask(process, "/api/goodput")
        assert status == 404
        assert "there is no job" in body["detail"]
        assert get(process, "/api/events")["items"] == []


def test_workers_barriers_checkpoints_and_events_are_shown_as_they_are(coordinator: ServedCoordinator) -> None:
    with ExitStack() as stack:
        a = stack.enter_context(Client(coordinator.url, "a", job_id="shown", address="host-a", gpu_count=8))
        a.wait_registered()  # before b begins, so that it has rank 0
        b = stack.enter_context(Client(coordinator.url, "b", job_id="shown"))
        b.wait_registered()
        wait_until(lambda: a.heartbeat().world_size == 2, "both are members")
        a.heartbeat(
            state=WorkerState.TRAINING, step=7, epoch=1, resources={"loss": 0.5, "bad": float("nan"), HOSTILE[:64]: 1.0}
        )
        # An answer may be a quarter of a second old.
        wait_until(lambda: get(coordinator, "/api/workers/a?job=shown")["step"] == 7, "its step is seen")
        page = get(coordinator, "/api/workers?job=shown")
        assert [worker["worker_id"] for worker in page["items"]] == ["a", "b"]
        first = get(coordinator, "/api/workers/a?job=shown")
        assert (first["host"], first["gpu_count"], first["step"], first["rank"]) == ("host-a", 8, 7, 0)
        assert first["metrics"] == {"loss": 0.5, "bad": None, HOSTILE[:64]: 1.0}
        assert get(coordinator, "/api/workers/b?job=shown")["lag"] == 7

        waiting = threading.Thread(target=lambda: a.meet(HOSTILE, timeout_s=stretch(60)))
        waiting.start()
        wait_until(lambda: bool(get(coordinator, "/api/barriers?job=shown")["open"]), "someone waits")
        (barrier,) = get(coordinator, "/api/barriers?job=shown")["open"]
        assert barrier["name"] == HOSTILE
        assert [missing["worker_id"] for missing in barrier["missing"]] == ["b"]
        b.meet(HOSTILE, timeout_s=stretch(60))
        waiting.join()
        wait_until(lambda: get(coordinator, "/api/barriers?job=shown")["released_total"] == 1, "it is released")

        generation = a.generation
        report = a.worker_command(
            ReportPart, generation=generation, step=7, epoch=1, report=PartReport("p", 1_000, "d"), progress=0
        )
        a.ask(report, timeout_s=stretch(20))
        wait_until(lambda: get(coordinator, "/api/checkpoints?job=shown")["total"] == 1, "it is begun")
        pending = get(coordinator, "/api/checkpoints/7?job=shown")
        assert (pending["state"], pending["missing"], pending["parts"]) == ("collecting", ["b"], 1)

    wait_until(lambda: get(coordinator, "/api/checkpoints/7?job=shown")["state"] == "aborted", "both have left")
    kinds = [event["kind"] for event in get(coordinator, "/api/events?job=shown")["items"]]
    assert kinds[0] == "generation changed"
    assert "checkpoint begun" in kinds


def test_what_does_not_exist_is_404_and_what_cannot_be_is_422_in_words(coordinator: ServedCoordinator) -> None:
    with Client(coordinator.url, "a", job_id="refusals") as client:
        client.wait_registered()
        for path, status, words in (
            ("/api/workers?job=nowhere", 404, "there is no job 'nowhere'"),
            ("/api/workers/z?job=refusals", 404, "z"),
            ("/api/datasets/z?job=refusals", 404, "z"),
            ("/api/checkpoints/9?job=refusals", 404, "9"),
            ("/api/nothing", 404, "/api/nothing"),
            ("/api/checkpoints/x", 422, "step"),
            ("/api/checkpoints/-1", 422, "step"),
            ("/api/workers?limit=0", 422, "limit"),
            ("/api/workers?offset=-1", 422, "offset"),
            ("/api/workers?state=nonsense", 422, "state"),
            ("/api/checkpoints?state=nonsense", 422, "state"),
            ("/api/workers?job=a%2Fb%2Fc", 422, "job"),
            ("/api/workers?job=", 422, "job"),
            ("/api/series?points=1", 422, "points"),
            ("/api/series?since=nan", 422, "since"),
            ("/api/events?after=nonsense", 422, "after"),
            ("/api/events?limit=many", 422, "limit"),
        ):
            answered, body, _ = ask(coordinator, path)
            assert (answered, words in body["detail"]) == (status, True), (path, body)


def test_a_poll_of_nothing_is_304_and_empty(coordinator: ServedCoordinator) -> None:
    path = "/api/datasets?job=polled"
    with Client(coordinator.url, "a", job_id="polled") as client:
        client.wait_registered()
        status, body, headers = ask(coordinator, path)
        assert (status, body["total"]) == (200, 0)
        status, body, again = ask(coordinator, path, **{"If-None-Match": headers["etag"]})
        assert (status, body) == (304, None)
        assert again["etag"] == headers["etag"]
        assert float(again["x-strata-time"]) > 0
        assert ask(coordinator, path, **{"If-None-Match": f'"other", W/{headers["etag"]}'})[0] == 304
        assert ask(coordinator, path, **{"If-None-Match": '"other"'})[0] == 200


def test_a_poll_of_events_is_304_until_something_happens(coordinator: ServedCoordinator) -> None:
    path = "/api/events?job=quiet"
    with Client(coordinator.url, "a", job_id="quiet") as client:
        client.wait_registered()
        wait_until(lambda: bool(get(coordinator, path)["items"]), "it joined")
        _, body, headers = ask(coordinator, path)
        assert [event["kind"] for event in body["items"]] == ["generation changed"]
        assert ask(coordinator, path, **{"If-None-Match": headers["etag"]})[:2] == (304, None)
    wait_until(lambda: ask(coordinator, path, **{"If-None-Match": headers["etag"]})[0] == 200, "it left")


def test_a_checkpoint_says_which_ranks_differ_and_a_job_without_workers_where_it_was(
    coordinator: ServedCoordinator,
) -> None:
    diverged = Divergence((1,), "head.weight", 1)
    with (
        Client(coordinator.url, "a", job_id="split") as a,
        Client(coordinator.url, "b", job_id="split") as b,
    ):
        a.wait_registered()
        b.wait_registered()
        wait_until(lambda: a.heartbeat().world_size == b.heartbeat().world_size == 2, "both are members")
        generation = a.generation
        for step, found in ((3, None), (6, diverged)):
            for worker in (a, b):
                report = PartReport(f"{id(worker)}-{step}", 10, "d")
                fields = {"generation": generation, "step": step, "epoch": 2, "report": report, "progress": 0}
                worker.ask(worker.worker_command(ReportPart, **fields), timeout_s=stretch(20))
            record = CommitRecord(step, 2, "m", "[]", found)
            a.ask(a.worker_command(ConfirmCommit, generation=generation, **record._asdict()), timeout_s=stretch(20))
        wait_until(lambda: get(coordinator, "/api/checkpoints?job=split&state=committed")["total"] == 2, "both")
        agreed, differ = (get(coordinator, f"/api/checkpoints/{step}?job=split") for step in (3, 6))
        assert (agreed["diverged"], agreed["divergence"]) == (False, "")
        assert (differ["diverged"], differ["divergence"]) == (True, "rank 1 held other values of head.weight")
    wait_until(lambda: get(coordinator, "/api/dashboard?job=split")["job"]["state"] == "finished", "both left")
    assert get(coordinator, "/api/dashboard?job=split")["job"]["epoch"] == 2


def test_paging_shows_every_worker_once(coordinator: ServedCoordinator) -> None:
    clients = [Client(coordinator.url, f"w{number}", job_id="paged", keep_alive_s=0) for number in range(7)]
    try:
        for client in clients:
            client.wait_registered(stretch(30))
        wait_until(lambda: get(coordinator, "/api/workers?job=paged")["total"] == 7, "all are seen")
        found = []
        for offset in range(0, 8, 3):
            page = get(coordinator, f"/api/workers?job=paged&limit=3&offset={offset}")
            assert page["total"] == 7
            found += [worker["worker_id"] for worker in page["items"]]
        assert sorted(found) == [f"w{number}" for number in range(7)]
        assert get(coordinator, "/api/workers?job=paged&search=W3")["total"] == 1
        assert get(coordinator, "/api/workers?job=paged&state=failed")["total"] == 0
    finally:
        for client in clients:
            client.close()


def test_events_stream_from_a_position_on_as_they_happen(coordinator: ServedCoordinator) -> None:
    with Client(coordinator.url, "a", job_id="streamed") as client:
        client.wait_registered()
        wait_until(lambda: bool(get(coordinator, "/api/events?job=streamed")["items"]), "it has joined")
        position = get(coordinator, "/api/events?job=streamed")["next"]
        request = urllib.request.Request(
            f"{coordinator.http_url}/api/events?job=streamed",
            headers={"Accept": "text/event-stream", "Last-Event-ID": position},
        )
        with urllib.request.urlopen(request, timeout=stretch(60)) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            with Client(coordinator.url, "b", job_id="streamed") as second:
                second.wait_registered()
                message: dict[str, str] = {}
                for line in stream:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name:
                        message[name] = value
                    elif message.get("event") == "event":
                        break
                    else:
                        message = {}
        event = json.loads(message["data"])
        assert "b joined" in event["reason"]
        assert message["id"] == event["position"] != position


def test_where_the_time_went_survives_a_killed_coordinator(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    with process.serving(), Client(process.url, "a", keep_alive_s=0) as client:
        client.wait_registered()
        client.heartbeat(state=WorkerState.TRAINING, step=50, account=account(100.0, steps=50))
        wait_until(lambda: get(process, "/api/goodput")["wall_s"] > 99, "it is heard")
        wait_until(lambda: (tmp_path / "j.db-history.jsonl").exists(), "it is written down")
        client.close()
        wait_until(lambda: get(process, "/api/jobs")["jobs"][0]["workers"] == 0, "it has left")
    with process.serving():
        found = get(process, "/api/goodput")
        assert found["wall_s"] == pytest.approx(100.0, abs=0.01)
        assert found["steps"] == 50
        assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["wall_s"])
        assert any(mark["kind"] == "coordinator" for mark in get(process, "/api/series")["marks"])


def test_a_failure_is_counted_once_however_soon_after_it_the_coordinator_is_killed(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    for number in (1, 2):
        with process.serving():
            client = Client(process.url, "a", keep_alive_s=0)
            client.wait_registered()
            # Answered when it is durable; leaving the block is kill -9, before the history's file is written.
            client.close("it crashed", cause=Cause.CRASHED)
        with process.serving():
            assert get(process, "/api/jobs")["jobs"][0]["failures"] == number


def test_a_taken_port_is_one_line_and_without_http_there_is_none(
    tmp_path: Path, coordinator: ServedCoordinator
) -> None:
    second = CoordinatorProcess(tmp_path, "--http-port", str(coordinator.http_port))
    with pytest.raises(RuntimeError, match="HTTP cannot listen on"), second.serving():
        pass
    third = CoordinatorProcess(tmp_path, "--no-http")
    with third.serving(), Client(third.url, "a") as client:
        client.wait_registered()
        assert b"http=" not in third.log()
        with pytest.raises(urllib.error.URLError):
            ask(third, "/api/health")


def test_what_was_just_made_is_found(coordinator: ServedCoordinator) -> None:
    for number in range(5):
        get(coordinator, "/api/jobs")  # a copy that does not have it
        with Client(coordinator.url, "a", job_id=f"new{number}", keep_alive_s=0) as client:
            client.wait_registered()
            assert get(coordinator, f"/api/workers/a?job=new{number}")["worker_id"] == "a"


def test_more_barriers_are_counted_than_are_kept(coordinator: ServedCoordinator) -> None:
    with Client(coordinator.url, "a", job_id="met") as client:
        client.wait_registered()
        for number in range(1_030):
            client.meet(f"b{number}", timeout_s=stretch(30))
        wait_until(lambda: get(coordinator, "/api/barriers?job=met")["released_total"] == 1_030, "all are counted")
        assert len(get(coordinator, "/api/barriers?job=met")["released"]) == 50


def test_an_epoch_that_is_not_kept_any_more_is_not_said_to_be_unseen(coordinator: ServedCoordinator) -> None:
    with Client(coordinator.url, "a", job_id="epochs") as client:
        client.wait_registered()
        client.ask(RegisterDataset(job_id="epochs", dataset_id="d", total_samples=4, shard_size=4))
        generation = client.get_rank_info().generation
        for epoch in range(22):
            span = Span(shard=0, start=0, stop=4)
            client.report(generation=generation, dataset_id="d", epoch=epoch, step=epoch + 1, spans=(span,)).result(
                stretch(30)
            )
        wait_until(
            lambda: get(coordinator, "/api/datasets/d?job=epochs&epoch=21")["audit"]["exactly_once"], "all are seen"
        )
        assert get(coordinator, "/api/datasets/d?job=epochs&epoch=2")["audit"]["exactly_once"]
        status, body, _ = ask(coordinator, "/api/datasets/d?job=epochs&epoch=1")
        assert (status, "from epoch 2 on" in body["detail"]) == (404, True), body
        assert get(coordinator, "/api/datasets/d?job=epochs&epoch=30")["audit"]["missing"]["samples"] == 4


@pytest.mark.parametrize("path", ["/api/health", "/api/jobs", "/api/events", "/metrics", "/api/nothing"])
def test_head_is_answered_with_the_headers_of_get(coordinator: ServedCoordinator, path: str) -> None:
    with ExitStack() as stack:
        connection = http.client.HTTPConnection("127.0.0.1", coordinator.http_port, timeout=stretch(20))
        stack.callback(connection.close)
        heard = []
        for method in ("HEAD", "GET", "GET"):
            connection.request(method, path, headers={"Accept": "text/event-stream" if method == "HEAD" else "*/*"})
            response = connection.getresponse()
            body = response.read()
            heard.append((response.status, response.headers["content-type"]))
            assert bool(body) is (method == "GET")
        assert heard[0] == heard[1] == heard[2]
