"""The names of traces, and the ids that follow from them. Pure.

All processes of a job come to the same ids by themselves: they know the job's seed, and what the trace is about. So no
message carries a trace, and a process that does not trace takes nothing from the others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

# Under this key a job keeps the seed of its traces, for its workers and for the coordinator.
TRACES_KEY = "traces"
Attribute = str | int | float | bool


class TraceName(NamedTuple):
    """What a trace is about; every span of it says so in its attributes."""

    kind: str
    about: tuple[tuple[str, str | int], ...]


class TraceIds(NamedTuple):
    """The id of a trace, and of the span that all others are below."""

    trace_id: int
    root_id: int


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time, between two readings of the monotonic clock; with an error if it ended badly."""

    name: str
    began_s: float
    ended_s: float
    attributes: dict[str, Attribute] = field(default_factory=dict)
    error: str | None = None
    children: tuple[Span, ...] = ()


def checkpoint_trace(generation: int, step: int) -> TraceName:
    """Name the trace of a checkpoint, from the first copy of the state to the commit."""
    return TraceName("checkpoint", (("strata.generation", generation), ("strata.step", step)))


def barrier_trace(generation: int, name: str, round_: int) -> TraceName:
    """Name the trace of one meeting of all workers."""
    about = (("strata.generation", generation), ("strata.barrier", name), ("strata.round", round_))
    return TraceName("barrier", about)


def recovery_trace(generation: int) -> TraceName:
    """Name the trace of how a generation began: why the one before ended, and how all came to train on."""
    return TraceName("recovery", (("strata.generation", generation),))


def derive_ids(seed: str, trace: TraceName) -> TraceIds:
    """Return ids that are the same in every process, and others for each seed; zero is no valid id."""
    digest = blake2b(json.dumps(trace).encode(), key=seed.encode()[:64], digest_size=24).digest()
    return TraceIds(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1)
