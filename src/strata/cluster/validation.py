"""What a field of a command may hold: one rule for each name, for every transport alike, before anything is decided.

Text of other people ends up in the journal, in memory, in logs and on terminals, so it is short and printable. Reasons
are for people and are cut rather than refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from strata import ids, reported_numbers
from strata.cluster.access.names import check_name
from strata.cluster.commands import ArriveAtBarrier, Command, Heartbeat, WorkerCommand
from strata.cluster.events import Cause
from strata.cluster.lifecycle.job_state import OUTCOMES
from strata.cluster.values import MAX_RANKS, MAX_REPLICAS, MAX_TENSOR, Divergence, PartReport, WorkerAccount
from strata.errors import BadCommandError, DamagedRecordError, InvalidIdError
from strata.sharding import DatasetParams, GlobalCursor, RangeSet, StickyCursor, cursor_from_json

MAX_NUMBER = 2**63 - 1
MAX_TIMEOUT_S = 1e9
MAX_TIME_S = 1e12
MAX_COUNT = 1_000_000
MAX_NAME = 512
MAX_PATH = 1_024
MAX_REASON = 2_000
MAX_SAVES = 16
MAX_ROWS = 1 << 16
# So many senders are known to have names that may be.
MAX_SENDERS = 1 << 16
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SENDER = ("job_id", "worker_id", "incarnation")
_senders: set[tuple[str, str, str]] = set()
Check = Callable[[str, Any], None]


def check_fields(command: Command) -> Command:
    """Return the command, with long reasons cut; raise InvalidIdError or BadCommandError for what may not be."""
    if (is_sound := _SOUND.get(type(command))) is not None and is_sound(command):
        return command
    plan = _plans.get(type(command)) or _plan(type(command))
    for name, low, high, is_optional in plan.numbers:
        value = getattr(command, name)
        if (type(value) is not int or not low <= value <= high) and not (is_optional and value is None):
            raise BadCommandError(f"{name} is {_shown(value)}; use a whole number from {low} to {high}")
    if isinstance(command, WorkerCommand):
        _check_sender(command)
    for name, check in plan.others:
        check(name, getattr(command, name))
    if plan.has_reason and len(command.reason) > MAX_REASON:  # type: ignore[attr-defined]  # the plan says it has one
        return replace(command, reason=command.reason[: MAX_REASON - 1] + "…")  # type: ignore[attr-defined,call-arg]  # the same
    return command


def _is_sound_beat(beat: Heartbeat) -> bool:
    """Whether nothing is wrong with a heartbeat, as with nearly all; what is wrong, the general way finds."""
    return (
        0 <= beat.step <= MAX_NUMBER
        and 0 <= beat.epoch <= MAX_NUMBER
        and not beat.resources
        and (beat.account is None or len(beat.account.saves) <= MAX_SAVES)
        and (beat.job_id, beat.worker_id, beat.incarnation) in _senders
    )


def _is_sound_arrival(arrival: ArriveAtBarrier) -> bool:
    """Whether nothing is wrong with an arrival."""
    return (
        0 <= arrival.generation <= MAX_NUMBER
        and 1 <= arrival.round <= MAX_NUMBER
        and arrival.expected is None
        and 0 < arrival.timeout_s <= MAX_TIMEOUT_S
        and (arrival.job_id, arrival.worker_id, arrival.incarnation) in _senders
        and _is_plain(arrival.name, 1, MAX_NAME)
    )


# The commands that come most often have a shorter way; a test holds it to the general one.
_SOUND: dict[type[Command], Callable[[Any], bool]] = {Heartbeat: _is_sound_beat, ArriveAtBarrier: _is_sound_arrival}


def _check_sender(command: WorkerCommand) -> None:
    """Check who sends a command, once for each sender: nearly all commands come from one that is known."""
    sender = command.job_id, command.worker_id, command.incarnation
    if sender in _senders:
        return
    for name, value in zip(_SENDER, sender, strict=True):
        FIELDS[name](name, value)
    if len(_senders) >= MAX_SENDERS:
        _senders.clear()
    _senders.add(sender)


def read_cursors(cursors: str) -> list[tuple[DatasetParams, GlobalCursor | StickyCursor, RangeSet]]:
    """Return the data position of a checkpoint, and what of it was passed over, or raise DamagedRecordError."""
    try:
        rows = json.loads(cursors)
    except (ValueError, RecursionError) as error:
        raise DamagedRecordError("cursors", f"{cursors[:80]!r} is not JSON") from error
    if not isinstance(rows, list):
        raise DamagedRecordError("cursors", f"{cursors[:80]!r} is not a list")
    found: list[tuple[DatasetParams, GlobalCursor | StickyCursor, RangeSet]] = []
    for row in rows:
        match row:
            case {"dataset": params, **cursor}:
                passed_over = RangeSet.from_runs(cursor.get("passed_over", []))
                found.append((DatasetParams.from_json(params), cursor_from_json(cursor), passed_over))
            case _:
                raise DamagedRecordError("cursor", f"{str(row)[:80]!r} does not name its dataset")
    return found


@dataclass(frozen=True)
class _Number:
    """A whole number within bounds, or none at all where that is allowed."""

    low: int
    high: int = MAX_NUMBER
    is_optional: bool = False

    def __call__(self, name: str, value: Any) -> None:
        if type(value) is not int or not self.low <= value <= self.high:
            raise BadCommandError(f"{name} is {_shown(value)}; use a whole number from {self.low} to {self.high}")


def _text(longest: int, *, shortest: int = 0) -> Check:
    def check(name: str, value: Any) -> None:
        if not _is_plain(value, shortest, longest):
            raise BadCommandError(f"{name} is {_shown(value)}; use {shortest} to {longest} printable characters")

    return check


def _id(kind: str) -> Check:
    return lambda _, value: _check_id(kind, value)


@lru_cache(maxsize=1 << 16)
def _check_id(kind: str, value: str) -> None:
    InvalidIdError.check(kind, value)


@lru_cache(maxsize=1 << 16)
def _check_job(value: str) -> None:
    """A job's name with its tenant before it is not refused here: who may say so, qualify knows."""
    check_name(value)


@lru_cache(maxsize=1 << 14)
def _is_plain(value: str, shortest: int, longest: int) -> bool:
    return shortest <= len(value) <= longest and value.isprintable()


def _seconds(name: str, value: Any) -> None:
    if not 0 < value <= MAX_TIMEOUT_S:  # no NaN is
        raise BadCommandError(f"{name} is {value}; use seconds above 0, at most {MAX_TIMEOUT_S:g}")


def _waited(name: str, value: Any) -> None:
    if not 0 <= value <= MAX_TIMEOUT_S:  # no NaN is
        raise BadCommandError(f"{name} is {value}; use seconds from 0 to {MAX_TIMEOUT_S:g}")


def _check_report(name: str, value: PartReport) -> None:
    if value is None:
        raise BadCommandError(f"{name} is missing; say where the part's report is, its size and its digest")
    _PATH(f"{name}.path", value.path)
    _NUMBER(f"{name}.size_bytes", value.size_bytes)
    _text(256)(f"{name}.digest", value.digest)
    _text(MAX_REPLICAS)(f"{name}.replicas", value.replicas)


def _check_repair(name: str, value: PartReport | None) -> None:
    if value is not None:
        _check_report(name, value)


def _check_divergence(name: str, value: Divergence | None) -> None:
    if value is None:
        return
    if not 0 < len(value.ranks) <= MAX_RANKS:
        raise BadCommandError(f"{name} names {len(value.ranks)} ranks; name 1 to {MAX_RANKS}")
    for rank in value.ranks:
        _NUMBER(f"{name}.ranks", rank)
    _text(MAX_TENSOR)(f"{name}.tensor", value.tensor)
    _Number(1)(f"{name}.tensors", value.tensors)


def _resources(name: str, value: dict[str, float]) -> None:
    if not value:
        return
    if len(value) > reported_numbers.MAX_NUMBERS:
        raise BadCommandError(f"{name} has {len(value)} values; use at most {reported_numbers.MAX_NUMBERS}")
    for key in value:
        if not _is_plain(key, 1, reported_numbers.MAX_NAME):
            raise BadCommandError(
                f"{name} names {_shown(key)}; use 1 to {reported_numbers.MAX_NAME} printable characters"
            )


def _account(name: str, value: WorkerAccount | None) -> None:
    # What it says is checked where it is used, and left out if it cannot be: telemetry refuses no heartbeat.
    if value is not None and len(value.saves) > MAX_SAVES:
        raise BadCommandError(f"{name} has {len(value.saves)} saves; send at most {MAX_SAVES}")


def _rows(*checks: tuple[str, Check]) -> Check:
    def check(name: str, value: Any) -> None:
        if len(value) > MAX_ROWS:
            raise BadCommandError(f"{name} has {len(value)} rows; send at most {MAX_ROWS} at a time")
        for row in value:
            for (column, check_column), cell in zip(checks, row, strict=True):
                check_column(f"{name}.{column}", cell)

    return check


def _steps(name: str, value: tuple[int, ...]) -> None:
    if len(value) > MAX_ROWS:
        raise BadCommandError(f"{name} has {len(value)} numbers; send at most {MAX_ROWS} at a time")
    for step in value:
        _NUMBER(name, step)


def _cursors(name: str, value: str) -> None:
    try:
        read_cursors(value)
    except DamagedRecordError as error:
        raise BadCommandError(f"{name}: {error}") from error


def _check_departure(name: str, value: Cause) -> None:
    if value not in OUTCOMES:
        raise BadCommandError(f"{name} is {value}, for which no worker leaves; use one of {', '.join(OUTCOMES)}")


def _sha256(name: str, value: str) -> None:
    if not _SHA256.fullmatch(value):
        raise BadCommandError(f"{name} has {len(value)} characters; send the SHA-256 of the secret as 64 hex digits")


def _expiry(name: str, value: float | None) -> None:
    if value is not None and not 0 < value <= MAX_TIME_S:  # no NaN is
        raise BadCommandError(f"{name} is {value}; use seconds since 1970, or nothing for a token that never expires")


def _token_ids(name: str, value: tuple[str, ...]) -> None:
    if len(value) > MAX_ROWS:
        raise BadCommandError(f"{name} has {len(value)} rows; send at most {MAX_ROWS} at a time")
    for token_id in value:
        _check_id("token id", token_id)


def _anything(name: str, value: Any) -> None:
    """Checked where it is used, or of a type that has no bad values."""


def _shown(value: object) -> str:
    shown = repr(value[:60] if isinstance(value, str) else value)
    return f"{shown[:60]}..." if len(shown) > 60 or (isinstance(value, str) and len(value) > 60) else shown


_NUMBER = _Number(0)
_WORD = _text(ids.MAX_LENGTH, shortest=1)
_PATH = _text(MAX_PATH, shortest=1)
FIELDS: dict[str, Check] = {
    "job_id": lambda _, value: _check_job(value),
    "tenant": _id("tenant"),
    "token_id": _id("token id"),
    "token_ids": _token_ids,
    "sha256": _sha256,
    "role": _anything,
    "jobs": _text(MAX_NAME, shortest=1),
    "expires_s": _expiry,
    # A quota that cannot be is refused when it is made.
    "quotas": _anything,
    "worker_id": _id("worker id"),
    "dataset_id": _id("dataset id"),
    "incarnation": _WORD,
    "writer": _WORD,
    "address": _text(MAX_NAME),
    "name": _text(MAX_NAME, shortest=1),
    "key": _text(256, shortest=1),
    "path": _PATH,
    "report": _check_report,
    "meetings": _rows(("name", _text(MAX_NAME, shortest=1)), ("round", _Number(1))),
    "payloads": _anything,
    "manifest": _PATH,
    "reason": _anything,
    "cause": _check_departure,
    "state": _anything,
    "data_order": _anything,
    "shuffle": _anything,
    "allow_suspect": _anything,
    "even_newest": _anything,
    "is_passed_over": _anything,
    "is_over": _anything,
    "seed": _Number(-(2**63)),
    "generation": _NUMBER,
    "sequence": _NUMBER,
    "progress": _NUMBER,
    "round": _Number(1),
    "number": _Number(1),
    "step": _NUMBER,
    "to_step": _NUMBER,
    "epoch": _NUMBER,
    "start": _NUMBER,
    "stop": _NUMBER,
    "token": _NUMBER,
    "gpu_count": _NUMBER,
    "memory_bytes": _NUMBER,
    "total_samples": _Number(1),
    "shard_size": _Number(1),
    "window_shards": _Number(2),
    "min_workers": _Number(1, MAX_COUNT),
    "max_workers": _Number(1, MAX_COUNT, is_optional=True),
    "preferred_rank": _Number(0, MAX_COUNT, is_optional=True),
    "expected": _Number(1, MAX_COUNT, is_optional=True),
    "timeout_s": _seconds,
    "waited_s": _waited,
    "resources": _resources,
    "account": _account,
    "payload": _anything,
    "value": _anything,
    "cursors": _cursors,
    "steps": _steps,
    "spans": _rows(("shard", _NUMBER), ("start", _NUMBER), ("stop", _NUMBER)),
    "workers": _rows(("worker_id", _id("worker id")), ("incarnation", _WORD)),
    "diverged": _check_divergence,
    "repair": _check_repair,
    "checkpoints": _rows(
        ("step", _NUMBER),
        ("epoch", _NUMBER),
        ("manifest", _PATH),
        ("cursors", _cursors),
        ("diverged", _check_divergence),
    ),
}


class _Plan(NamedTuple):
    """The checks of one kind of command: its whole numbers with their bounds, and the checks of its other fields."""

    numbers: tuple[tuple[str, int, int, bool], ...]
    others: tuple[tuple[str, Check], ...]
    has_reason: bool


_plans: dict[type[Command], _Plan] = {}


def _plan(kind: type[Command]) -> _Plan:
    """Return the checks of a kind of command; worked out once for each."""
    sender = _SENDER if issubclass(kind, WorkerCommand) else ()
    checks = [(field.name, FIELDS[field.name]) for field in fields(kind) if field.name not in sender]
    _plans[kind] = plan = _Plan(
        numbers=tuple((n, each.low, each.high, each.is_optional) for n, each in checks if isinstance(each, _Number)),
        others=tuple((n, each) for n, each in checks if not isinstance(each, _Number) and each is not _anything),
        has_reason=any(field.name == "reason" for field in fields(kind)),
    )
    return plan
