"""The routes of the HTTP API: parameters in, one answer out. Each route says which view it shows; none decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from strata.clock import SystemClock
from strata.cluster.commands import WorkerState
from strata.coordinator.http import answers as a
from strata.coordinator.http import job_views, series_answers, time_views, views
from strata.coordinator.http.desk import Desk, NotReadyError
from strata.coordinator.http.event_stream import stream_events
from strata.coordinator.http.known import Facts
from strata.coordinator.http.prometheus_text import CONTENT_TYPE
from strata.coordinator.replication.leader_only import LeaderOnly
from strata.coordinator.replication.leadership import lead_alone
from strata.coordinator.telemetry.event_store import EventStore
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.history import History
from strata.errors import StrataError

Handler = Callable[..., Awaitable[Response]]
H = TypeVar("H", bound=Handler)

DESCRIPTION = """\
What a Strata coordinator knows, read only. Times are seconds since 1970 UTC by the coordinator's clock; the header
X-Strata-Time of each answer says what time it is there. Send If-None-Match with the ETag of the last answer: if nothing
changed, the answer is 304 and empty. Answers hold only what is durable."""

MAX_PAGE = 10_000
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    404: {"model": a.Problem, "description": "No such job, worker, dataset or checkpoint."},
    422: {"model": a.Problem, "description": "A parameter has a value that it cannot have."},
    503: {"model": a.Problem, "description": "The coordinator's loop does not answer."},
}
_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "Nothing changed since the ETag given."}}
_ID = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
# An administrator writes tenant/job; nobody else has a job of such a name.
_JOB = r"^([A-Za-z0-9_-][A-Za-z0-9._-]{0,127}/)?[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
_POSITION = r"^[A-Za-z0-9]{1,32}-[0-9]{1,18}$"

Job = Annotated[str | None, Query(pattern=_JOB, description="The job; by default the busiest one.")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="How many to leave out.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many to return at most.")]
IfNoneMatch = Annotated[
    str | None, Header(description="ETags of answers that the client has; if one is still right, the answer is 304.")
]
Step = Annotated[int, Path(ge=0, lt=2**63)]
Name = Annotated[str, Path(pattern=_ID)]
Seconds = Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)]


class HeadAsGet:
    """Answers HEAD with the headers of GET, as monitors of a service ask; the server leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            # Without Accept: a stream of events would have no end, and nobody reads it.
            headers = [each for each in scope["headers"] if each[0] != b"accept"]
            scope = {**scope, "method": "GET", "headers": headers}
        await self._app(scope, receive, send)


def describe_api() -> dict[str, Any]:
    """Return the OpenAPI document; its version is that of the API, not of the package."""
    history = History(Feed(), EventStore("none"))
    facts = Facts(version="1", started_s=0.0, journal="memory", grpc_port=0, channel_port=0)
    return make_app(Desk(Future, Feed(), history, facts, lambda: 0.0, lead_alone(SystemClock()))).openapi()


def make_app(desk: Desk, page: BaseRoute | None = None) -> FastAPI:
    """Return the application that answers from a desk; ``page`` answers what is no route of the API."""
    app = FastAPI(
        title="Strata coordinator",
        version=desk.facts.version,
        description=DESCRIPTION,
        # The document is served; its viewers would load scripts of others.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        separate_input_output_schemas=False,
    )
    app.include_router(_routes(desk))
    app.add_middleware(LeaderOnly, leadership=desk.leadership)
    app.add_middleware(HeadAsGet)
    if page is not None:
        app.router.routes.append(page)  # the last one, for it takes every path
    app.add_exception_handler(RequestValidationError, _refuse_values)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(StrataError, _refuse_unknown)
    app.add_exception_handler(job_views.EpochNotKeptError, _refuse_unknown)
    app.add_exception_handler(NotReadyError, _refuse_for_now)
    return app


def _routes(desk: Desk) -> APIRouter:
    router = APIRouter()

    def get(path: str, model: Any, summary: str) -> Callable[[H], H]:
        return router.get(
            path,
            response_model=model,
            summary=summary,
            responses={**_PROBLEMS, **_NOT_MODIFIED},
            tags=["strata"],
        )

    @get("/api/dashboard", series_answers.Dashboard, "Everything about one job, and the coordinator")
    async def dashboard(request: Request, job: Job = None, if_none_match: IfNoneMatch = None) -> Response:
        return await desk.answer(request, lambda state: views.make_dashboard(state, job))

    @router.get(
        "/api/health",
        response_model=a.Health,
        summary="Whether the coordinator lives",
        responses={503: _PROBLEMS[503]},
        tags=["strata"],
    )
    async def health() -> Response:
        return await desk.fresh(views.make_health)

    @router.get(
        "/api/ready",
        response_model=a.Readiness,
        summary="Whether this replica is in its place: a leader takes durable commands, a standby could lead",
        responses={
            422: _PROBLEMS[422],
            503: {"model": a.Readiness, "description": "It does not; reason says why."},
        },
        tags=["strata"],
    )
    async def ready(
        role: Annotated[a.ReplicaRole | None, Query(description="Be ready only in this role.")] = None,
    ) -> Response:
        return await desk.ready(role)

    @get("/api/status", a.CoordinatorStatus, "The coordinator itself")
    async def status(request: Request, if_none_match: IfNoneMatch = None) -> Response:
        return await desk.answer(request, views.make_status)

    @get("/api/jobs", a.Jobs, "All jobs")
    async def jobs(request: Request, if_none_match: IfNoneMatch = None) -> Response:
        return await desk.answer(request, views.make_jobs)

    @get("/api/workers", a.Page[a.Worker], "Workers of a job")
    async def workers(
        request: Request,
        job: Job = None,
        state: Annotated[WorkerState | None, Query(description="Only workers in this state.")] = None,
        search: Annotated[str | None, Query(max_length=128, description="Only names and hosts with this text.")] = None,
        offset: Offset = 0,
        limit: Limit = 1_000,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        return await desk.answer(
            request,
            lambda each: job_views.page_workers(each, job, state=state, search=search, offset=offset, limit=limit),
        )

    @get("/api/workers/{worker_id}", a.Worker, "One worker")
    async def worker(request: Request, worker_id: Name, job: Job = None, if_none_match: IfNoneMatch = None) -> Response:
        return await desk.answer(request, lambda state: job_views.find_worker(state, job, worker_id))

    @get("/api/datasets", a.Page[a.Dataset], "Datasets of a job")
    async def datasets(
        request: Request, job: Job = None, offset: Offset = 0, limit: Limit = 100, if_none_match: IfNoneMatch = None
    ) -> Response:
        return await desk.answer(request, lambda state: job_views.page_datasets(state, job, offset=offset, limit=limit))

    @get("/api/datasets/{dataset_id}", a.DatasetDetail, "One dataset, with the audit of an epoch")
    async def dataset(
        request: Request,
        dataset_id: Name,
        job: Job = None,
        epoch: Annotated[int | None, Query(ge=0, lt=2**63, description="By default the newest.")] = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        return await desk.answer(
            request, lambda state: job_views.find_dataset(state, job, dataset_id, epoch), is_heavy=True
        )

    @get("/api/checkpoints", a.Page[a.Checkpoint], "Checkpoints of a job, newest first")
    async def checkpoints(
        request: Request,
        job: Job = None,
        state: Annotated[a.CheckpointState | None, Query(description="Only those in this state.")] = None,
        offset: Offset = 0,
        limit: Limit = 100,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        return await desk.answer(
            request, lambda each: job_views.page_checkpoints(each, job, state=state, offset=offset, limit=limit)
        )

    @get("/api/checkpoints/{step}", a.Checkpoint, "One checkpoint")
    async def checkpoint(request: Request, step: Step, job: Job = None, if_none_match: IfNoneMatch = None) -> Response:
        return await desk.answer(request, lambda state: job_views.find_checkpoint(state, job, step))

    @get("/api/barriers", a.Barriers, "Barriers that are open, and how long the last ones took")
    async def barriers(request: Request, job: Job = None, if_none_match: IfNoneMatch = None) -> Response:
        return await desk.answer(request, lambda state: job_views.make_barriers(state, job))

    @router.get(
        "/api/events",
        response_model=a.Events,
        summary="What happened; with Accept: text/event-stream, what happens",
        responses={
            **_PROBLEMS,
            **_NOT_MODIFIED,
            200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The events."},
        },
        tags=["strata"],
    )
    async def events(
        request: Request,
        job: Annotated[str | None, Query(pattern=_JOB, description="Only of this job; by default of all.")] = None,
        after: Annotated[
            str | None,
            Query(pattern=_POSITION, description="The position after which to begin; by default the oldest known."),
        ] = None,
        kind: Annotated[str | None, Query(max_length=64, description="Only of this kind.")] = None,
        newest: Annotated[bool, Query(description="The last ones instead of the first ones.")] = False,  # noqa: FBT002 - passed by name
        limit: Limit = 1_000,
        accept: Annotated[str, Header()] = "application/json",
        last_event_id: Annotated[str | None, Header()] = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        if "text/event-stream" in accept:
            return stream_events(desk, request, job_id=job, after=last_event_id or after, kind=kind)
        return await desk.list_events(request, job_id=job, after=after, kind=kind, limit=limit, newest=newest)

    @get("/api/goodput", series_answers.Goodput, "Where the time went")
    async def goodput(request: Request, job: Job = None, if_none_match: IfNoneMatch = None) -> Response:
        return await desk.answer(request, lambda state: time_views.make_goodput(state, job))

    @get("/api/series", series_answers.Series, "Time series for charts")
    async def series(
        request: Request,
        job: Job = None,
        since: Annotated[Seconds, Query(description="Only from this time on, in seconds since 1970.")] = None,
        until: Annotated[Seconds, Query(description="Only up to this time.")] = None,
        points: Annotated[int, Query(ge=2, le=2_000, description="How many times at most.")] = 300,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        return await desk.answer(
            request, lambda state: time_views.make_series(state, job, since_s=since, until_s=until, points=points)
        )

    @get("/api/series/step-times", series_answers.StepTimes, "Step times by rank, for a heat map")
    async def step_times(
        request: Request, job: Job = None, offset: Offset = 0, limit: Limit = 256, if_none_match: IfNoneMatch = None
    ) -> Response:
        return await desk.answer(
            request, lambda state: time_views.make_step_times(state, job, offset=offset, limit=limit)
        )

    @router.get(
        "/metrics",
        summary="Metrics in Prometheus' text format",
        response_class=Response,
        responses={
            200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}, "description": "The metrics."},
            503: _PROBLEMS[503],
        },
        tags=["prometheus"],
    )
    async def metrics(request: Request) -> Response:
        return await desk.metrics(request)

    return router


async def _refuse_values(request: Request, error: Exception) -> Response:
    """Say in words which parameter is wrong, and why."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{each['loc'][0]} parameter {each['loc'][-1]!r}: {each['msg']}" for each in error.errors()]
    return _problem(422, "; ".join(problems))


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == 404 and detail == "Not Found":
        detail = f"there is no {request.url.path}; see /api/openapi.json for what there is"
    return _problem(error.status_code, detail, headers=dict(error.headers or {}))


async def _refuse_unknown(request: Request, error: Exception) -> Response:
    return _problem(404 if isinstance(error, LookupError) else 422, str(error))


async def _refuse_for_now(request: Request, error: Exception) -> Response:
    return _problem(503, str(error), headers={"Retry-After": "1"})


def _problem(status: int, detail: str, *, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status_code=status, headers=headers)
