"""A recovery of one worker, as a span: gathering, restoring the state, and setting the data position."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from strata.cluster.values import RankInfo
from strata.tracing.trace_names import Attribute, Span, recovery_trace
from strata.tracing.traces import Traces


class Recovery:
    """One attempt to go on in a generation, from now on; an attempt that fails ends where it failed."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._began_s = self._gathered_s = self._restored_s = time.monotonic()
        self._rank_info = RankInfo(0, 0, 0)

    @contextmanager
    def restoring(self, rank_info: RankInfo) -> Iterator[None]:
        """All workers are there, and the state is restored in the block."""
        self._rank_info, self._gathered_s = rank_info, time.monotonic()
        try:
            with self._traces.within(recovery_trace(rank_info.generation)):
                yield
        except BaseException as error:
            self._record(None, str(error) or type(error).__name__)
            raise
        finally:
            self._restored_s = time.monotonic()

    def end(self, step: int) -> int:
        """The state is that of this step, and training goes on; return the step."""
        self._record(step, None)
        return step

    def _record(self, step: int | None, problem: str | None) -> None:
        if not self._traces.is_on:
            return
        now_s = time.monotonic()
        phases = [Span("gather", self._began_s, self._gathered_s)]
        if problem is None:
            phases += [Span("restore", self._gathered_s, self._restored_s), Span("data", self._restored_s, now_s)]
        else:
            phases += [Span("restore", self._gathered_s, now_s, error=problem)]
        rank, world_size, generation = self._rank_info
        attributes: dict[str, Attribute] = {"strata.rank": rank, "strata.world_size": world_size}
        if step is not None:
            attributes["strata.restored_step"] = step
        self._traces.record(
            recovery_trace(generation),
            Span("recover", self._began_s, now_s, attributes, problem, tuple(phases)),
            leads=rank == 0,
        )
