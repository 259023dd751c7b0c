"""A worker that is no member any more saves nothing, and trains on: its save is given up, on its handle."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from strata.checkpoint import CheckpointManager
from strata.cluster.values import RankInfo
from strata.errors import (
    CheckpointAbortedError,
    GenerationChangedError,
    OutOfOrderError,
    StaleGenerationError,
    StaleIncarnationError,
    StrataError,
    UnknownJobError,
    UnknownWorkerError,
)
from strata.storage import MemoryStorage
from tests.testbed.pace import stretch

NOT_A_MEMBER = [
    UnknownWorkerError("a", known=["b"]),
    UnknownJobError("job", known=[]),
    StaleIncarnationError("a", "1", state="failed"),
    StaleGenerationError("a", sent=1, current=2),
    GenerationChangedError("epoch", 2),
    OutOfOrderError("a", what="report", expected=1, sent=2),
]


class Coordinator:
    """Does not know this worker when it is asked for its rank; everything else it takes and commits."""

    def __init__(self, answer: StrataError) -> None:
        self.answer: StrataError | None = answer

    def get_rank_info(self) -> RankInfo:
        if self.answer is not None:
            raise self.answer
        return RankInfo(rank=0, world_size=1, generation=1)

    def begin_part(self, _step: int, _generation: int) -> int:
        return 0

    def commit_part(self, *_: Any, **__: Any) -> Future[None]:
        return self._done()

    def adopt_checkpoints(self, _: Any) -> Future[None]:
        return self._done()

    def list_checkpoints(self) -> Future[tuple[int, ...]]:
        listed: Future[tuple[int, ...]] = Future()
        listed.set_result(())
        return listed

    def serve_manifests(self, _: Any) -> None:
        """No manifest is ever wanted here."""

    def _done(self) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done


@pytest.mark.parametrize("answer", NOT_A_MEMBER, ids=lambda answer: type(answer).__name__)
def test_a_save_without_membership_fails_on_its_handle_and_training_goes_on(answer: StrataError) -> None:
    coordinator = Coordinator(answer)
    with CheckpointManager(storage=MemoryStorage(), coordinator=coordinator) as manager:
        handle = manager.save_background({"w": 1}, 7)
        with pytest.raises(CheckpointAbortedError, match="step 7 was aborted") as caught:
            handle.result(stretch(10))
        assert caught.value.__cause__ is answer
        assert str(answer) in caught.value.reason
        coordinator.answer = None
        assert manager.save_background({"w": 2}, 8).result(stretch(10)).committed
    assert manager.counters.failed == 1
