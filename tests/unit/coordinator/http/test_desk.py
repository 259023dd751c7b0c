"""The desk: one answer for all who ask the same, none that is too old, and words where there is none."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from strata.cluster import commands as c
from strata.cluster.access import Principal, Role
from strata.coordinator.entry.gate import Caller
from strata.coordinator.http import desk as module
from strata.coordinator.http.known import Encoded, Known
from strata.errors import UnknownJobError
from tests.unit.coordinator.http.served_api import request_of, serving_api


async def test_a_coordinator_whose_loop_does_not_answer_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_TIMEOUT_S", 0.001)
    async with serving_api() as api:
        monkeypatch.setattr(api.desk, "_take", Future)
        for path in ("/api/health", "/api/ready", "/api/jobs", "/metrics"):
            answer = await api.get(path)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.content["detail"] == "the coordinator's own loop has not answered for 0.001 s"
        monkeypatch.undo()
        assert (await api.see("/api/health"))["status"] == "ok"


async def test_what_a_copy_does_not_have_is_looked_for_in_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AGE_S", 1e9)
    async with serving_api() as api:
        await api.join("a")
        assert len((await api.see("/api/jobs"))["jobs"]) == 1
        await api.join("b", job_id="other")
        assert len((await api.see("/api/jobs"))["jobs"]) == 1  # the copy is young enough
        assert (await api.see("/api/workers/b?job=other"))["worker_id"] == "b"
        assert len((await api.see("/api/jobs"))["jobs"]) == 2
        assert (await api.get("/api/workers/c?job=other")).status == 404


async def test_a_client_that_has_the_answer_gets_none() -> None:
    async with serving_api() as api:
        await api.join("a")
        for path in ("/api/jobs", "/api/events"):
            answer = await api.get(path)
            etag = answer.headers["etag"]
            for given in (etag, f"W/{etag}", f'"other", {etag}', " * "):
                again = await api.get(path, if_none_match=given)
                assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
            assert (await api.get(path, if_none_match='"other"')).body == answer.body


@pytest.mark.parametrize("bound", [("MAX_CACHED", 2), ("MAX_CACHED_BYTES", 2 * len('"answer"'))])
async def test_answers_are_kept_until_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, bound: tuple[str, int]
) -> None:
    monkeypatch.setattr(module, *bound)
    made: list[str] = []
    async with serving_api() as api:

        async def ask(path: str) -> None:
            def make(_: Known) -> Encoded:
                made.append(path)
                return Encoded(b'"answer"')

            assert (await api.desk.answer(request_of(path), make)).body == b'"answer"'

        for path in ("/1", "/2", "/1", "/3", "/2", "/3", "/1"):
            await ask(path)
        assert made == ["/1", "/2", "/3", "/1"]
        await api.join("a")  # now all of them are old
        await ask("/3")
        assert made == ["/1", "/2", "/3", "/1", "/3"]


async def test_a_position_in_the_future_is_refused_with_the_newest() -> None:
    async with serving_api() as api:
        await api.join("a")
        for accept in ("application/json", "text/event-stream"):
            answer = await api.get("/api/events?after=life-7", accept=accept)
            assert answer.status == 422
            assert answer.content["detail"] == "after='life-7' lies in the future; the newest position is 'life-1'"


async def test_to_a_tenant_the_full_name_of_a_job_names_none() -> None:
    async with serving_api() as api:
        await api.join("a")
        request = request_of("/api/events")
        request.scope["strata.caller"] = Caller(Principal("x", "acme", Role.VIEWER), "127.0.0.1")
        with pytest.raises(UnknownJobError, match="there is no job 'default/job'"):
            api.desk.find_events(request, job_id="default/job", after=None, kind=None, limit=1)


async def test_what_is_no_route_or_no_method_of_one_is_refused_in_words() -> None:
    async with serving_api() as api:
        missing = await api.get("/api/nothing")
        assert (missing.status, missing.content["detail"]) == (
            404,
            "there is no /api/nothing; see /api/openapi.json for what there is",
        )
        wrong = await api.get("/api/jobs", method="POST")
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET")
        assert wrong.content == {"detail": "Method Not Allowed"}
        values = await api.get("/api/workers?limit=0&offset=x")
        assert values.status == 422
        assert values.content["detail"] == (
            "query parameter 'offset': Input should be a valid integer, unable to parse string as an integer; "
            "query parameter 'limit': Input should be greater than or equal to 1"
        )


async def test_head_of_a_stream_of_events_ends() -> None:
    async with serving_api() as api:
        await api.join("a")
        answer = await api.get("/api/events", method="HEAD", accept="text/event-stream")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


async def test_a_job_that_was_made_anew_does_not_move_the_shards_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_AGE_S", -1.0)
    async with serving_api() as api:

        async def deal(*workers: str) -> None:
            generation = api.dispatcher.cluster.job("job").membership.generation
            asking = [
                c.LeaseShards(
                    job_id="job", worker_id=worker, incarnation="1-x", generation=generation, dataset_id="d", epoch=0
                )
                for worker in workers
            ]
            await api.ask(*asking)

        dataset = c.RegisterDataset(job_id="job", dataset_id="d", total_samples=60, shard_size=1)

        async def moved() -> int | None:
            (found,) = (await api.see("/api/datasets?job=job"))["items"]
            return found["moved_shards"]

        await api.join("a", "b")
        await api.ask(dataset)
        await deal("a", "b")
        assert await moved() is None
        await api.join("c")
        await deal("a", "b", "c")
        assert await moved() == 20
        assert await moved() == 20
        for worker in ("a", "b", "c"):
            await api.ask(c.Goodbye(job_id="job", worker_id=worker, incarnation="1-x"))
        await api.ask(c.RemoveJob(job_id="job"))
        assert (await api.see("/api/jobs"))["jobs"] == []
        await api.join("d")
        await api.ask(dataset)
        await deal("d")
        assert await moved() is None
