"""Notices: what a commit found odd, kept until the caller's own thread can warn of it."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from strata.errors import DivergedReplicasWarning, StrataWarning, UnchangedStateWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.cluster.values import Divergence

log = logging.getLogger(__name__)


class Notices:
    """Warnings that wait for a thread in which someone sees them, or turns them into errors."""

    def __init__(self) -> None:
        self._warnings: list[StrataWarning] = []
        self._left_out: set[str] = set()

    def note_left_out(self, step: int, left_out: Sequence[str]) -> None:
        """Log what of the metadata is not saved, once for each place in it."""
        for problem in left_out:
            if problem not in self._left_out:
                self._left_out.add(problem)
                log.warning("the checkpoint of step %d is saved without %s", step, problem)

    def note_unchanged(self, step: int, same_as: int | None) -> None:
        """Remember to warn that a step has the bits of another one."""
        if same_as is not None:
            warning = UnchangedStateWarning(step, same_as)
            log.warning("%s", warning)
            self._warnings.append(warning)

    def note_divergence(self, step: int, diverged: Divergence | None) -> None:
        """Remember to warn that replicas were not the same; whoever commits logs it."""
        if diverged is not None:
            self._warnings.append(
                DivergedReplicasWarning(step, ranks=diverged.ranks, tensor=diverged.tensor, tensors=diverged.tensors)
            )

    def warn(self) -> None:
        """Warn in the thread of the caller, at the line that called the manager."""
        while self._warnings:
            warnings.warn(self._warnings.pop(0), stacklevel=3)
