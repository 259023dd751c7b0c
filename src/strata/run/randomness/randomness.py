"""What a run does about random numbers: it saves each worker's, puts them back, and seeds them by step and block."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from strata.checkpoint.format.random_state import SavedRandomState
from strata.run.randomness import generators
from strata.sharding.hashing import Domain, hash_text, mix_integers

log = logging.getLogger(__name__)

# As for the order of the data.
DEFAULT_SEED = 0
_VERSION = 1


class Purpose(IntEnum):
    """What numbers are drawn for; streams of different purposes are unrelated."""

    WORKER = 1
    BLOCK = 2


def derive_seed(seed: int, purpose: Purpose, step: int, number: int, generator: str) -> int:
    """Return the seed of one generator for a worker, by rank, or for a block of samples, by number.

    The same in every process, on every platform and in every version: runs are reproduced by it.
    """
    return mix_integers(seed, purpose, step, number, hash_text(generator, Domain.KEY))


class Randomness:
    """The random numbers of one worker's run. With ``is_kept=False`` the shared generators are left alone.

    Those that stand in the state, which are given as ``held``, are saved and put back all the same.
    """

    def __init__(self, seed: int | None = None, *, is_kept: bool = True) -> None:
        self._seed = seed
        self._is_kept = is_kept

    def begin(self, *, rank: int) -> None:
        """Seed the shared generators at the beginning of a job, if it has a seed; otherwise the script seeds them."""
        if self._seed is not None:
            self._derive({}, step=0, rank=rank)

    def read(self, held: Mapping[str, Any]) -> bytes | None:
        """Return what a checkpoint keeps of this worker's generators; None if that is nothing."""
        shared = generators.find_generators() if self._is_kept else {}
        if not shared and not held:
            return None
        states = [{name: generators.read_state(each) for name, each in found.items()} for found in (shared, held)]
        return generators.encode({"version": _VERSION, "seed": self._seed, "shared": states[0], "held": states[1]})

    def put_back(
        self, saved: SavedRandomState | None, held: Mapping[str, Any], *, step: int, rank: int, world_size: int
    ) -> None:
        """Have the generators go on where the checkpoint was taken; None if nothing was restored.

        What the checkpoint has is each rank's own, so it is of no use to another number of workers: their generators
        are seeded by (seed, step, rank), the same at every restore of this step.
        """
        if saved is None or not (self._is_kept or held):
            return
        if saved.data is not None and saved.parts == world_size:
            self._put_back(generators.decode(saved.data), held, step=step, rank=rank)
            return
        if saved.parts == 0 and self._seed is None:
            how = "the generators are left as the script seeded them"
        else:
            how = f"generators are seeded by (seed {self._used_seed}, step {step}, rank)"
            self._derive(held, step=step, rank=rank)
        if rank == 0:
            by = f"by {saved.parts} workers, and there are {world_size} now" if saved.parts else "without it"
            log.info("random state: step %d was saved %s; %s", step, by, how)

    @contextmanager
    def seeded(self, step: int, block: int) -> Iterator[None]:
        """Seed the shared generators by (seed, step, block) within a ``with`` block; then they go on as before."""
        shared = generators.find_generators()
        before = {name: generators.read_state(each) for name, each in shared.items()}
        self._seed_all(shared, Purpose.BLOCK, step, block)
        try:
            yield
        finally:
            for name, state in before.items():
                generators.put_back(shared[name], state)

    @property
    def _used_seed(self) -> int:
        return DEFAULT_SEED if self._seed is None else self._seed

    def _put_back(self, saved: Mapping[str, Any], held: Mapping[str, Any], *, step: int, rank: int) -> None:
        if self._is_kept and saved["seed"] != self._seed and rank == 0:
            log.warning(
                "the checkpoint of step %d was saved with seed %s, and this run has seed %s: blocks, and workers of "
                "another number, get other random numbers from here on",
                *(step, saved["seed"], self._seed),
            )
        shared = generators.find_generators() if self._is_kept else {}
        for found, states in ((shared, saved["shared"]), (held, saved["held"])):
            for name in found.keys() & states.keys():
                try:
                    generators.put_back(found[name], states[name])
                except generators.RefusedStateError as error:
                    log.warning(
                        "generator %s does not take its state of step %d and is seeded by (seed %d, step, rank): %s",
                        *(name, step, self._used_seed, error),
                    )
                    self._seed_all({name: found[name]}, Purpose.WORKER, step, rank)
        if new := sorted(held.keys() - saved["held"].keys()):
            log.warning("the checkpoint of step %d has no state of the generators %s", step, ", ".join(new))

    def _derive(self, held: Mapping[str, Any], *, step: int, rank: int) -> None:
        shared = generators.find_generators() if self._is_kept else {}
        self._seed_all({**shared, **{f"state.{path}": each for path, each in held.items()}}, Purpose.WORKER, step, rank)
        torch = sys.modules.get("torch")
        if self._is_kept and torch is not None and not torch.cuda.is_initialized():
            # It has no generators yet; should it make some, then with this seed.
            torch.cuda.manual_seed_all(derive_seed(self._used_seed, Purpose.WORKER, step, rank, "cuda+0"))

    def _seed_all(self, found: Mapping[str, Any], purpose: Purpose, step: int, number: int) -> None:
        for name, each in found.items():
            generators.seed(each, derive_seed(self._used_seed, purpose, step, number, name))
