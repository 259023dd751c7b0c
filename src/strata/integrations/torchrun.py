"""torchrun's rendezvous in the coordinator: ``torchrun --rdzv-backend=strata --rdzv-endpoint=host:50051 ...``.

The state of the rendezvous is one key of the job, changed by compare-and-set and journaled, so that no node of the run
is special: any of them may die, and the coordinator may be killed and started again. What the agents tell each other
within a round goes through a TCPStore that the first node of that round serves, and ends with the round.

Options of ``--rdzv-conf``, beside torch's own: ``job_id`` (default: JOB_ID, or "default"), ``outage_timeout`` (how many
seconds a coordinator may be away before torchrun gives up: 300) and ``store_timeout`` (how many seconds the store of a
round may take to appear: 60).
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from torch.distributed import Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
)

from strata.client.unary import get_key, set_key
from strata.clock import backoff_s
from strata.cluster.replies import KeyValue
from strata.config import load_settings
from strata.errors import CoordinatorLostError, JournalUnavailableError, NotLeaderError, StrataError
from strata.integrations.torch_state import UnsafeStateError, dump_state, load_state

T = TypeVar("T")
POLL_S = 0.1
MAX_BACKOFF_S = 2.0
_RUN_BYTES = 16


def get_handler() -> Callable[[RendezvousParameters], CoordinatorRendezvous]:
    """Return what makes a handler: the object that torchrun looks for in the entry-point group."""
    return create_handler


def create_handler(params: RendezvousParameters) -> CoordinatorRendezvous:
    """Return the handler that torchrun asked for; nothing is connected until it is used."""
    settings = load_settings(coordinator_url=params.endpoint or None, job_id=params.get("job_id"))
    if settings.coordinator_url is None:
        raise ValueError("the rendezvous has no endpoint; use --rdzv-endpoint=host:50051, where the coordinator is")
    interval_s = _seconds(params, "keep_alive_interval", 5)
    attempts = _seconds(params, "keep_alive_max_attempt", 3)
    keys = _Keys(
        settings.coordinator_url, settings.job_id, params.run_id, outage_s=_seconds(params, "outage_timeout", 300)
    )
    backend = CoordinatorBackend(keys, silence_s=interval_s * attempts)
    timeouts = {name: _timeout(params, name) for name in ("join", "last_call", "close", "heartbeat")}
    handler: CoordinatorRendezvous = CoordinatorRendezvous.from_backend(
        params.run_id,
        None,
        backend,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        RendezvousTimeout(**timeouts),
        keep_alive_interval=interval_s,
        keep_alive_max_attempt=attempts,
    )
    handler.take_keys(backend, store_timeout_s=_seconds(params, "store_timeout", 60))
    return handler


class CoordinatorBackend(RendezvousBackend):
    """The state of one rendezvous in a key of the job.

    A run that was closed, and whose nodes have all fallen silent, is over: the next one may use its id again. The key
    holds the name of the present run before torch's own bytes.
    """

    def __init__(self, keys: _Keys, *, silence_s: float) -> None:
        self.keys = keys
        self.run = b""
        self._silence_s = silence_s
        self._over: int | None = None

    @property
    def name(self) -> str:
        """The name that torchrun knows it by."""
        return "strata"

    def get_state(self) -> tuple[bytes, int] | None:
        """Return the state and its token, or None before the first node of a run has come."""
        found = self.keys.get("state")
        return self._read(found) if found.token else None

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        """Set the state if nobody did since it was read; return what holds now, and whether it is ours."""
        if token is None:
            token, run = self._over or 0, uuid.uuid4().bytes
        else:
            run = self.run
        found = self.keys.set("state", run + state, token)
        if found.is_set:
            self.run, self._over = run, None
            return state, found.token, True
        known = self._read(found) if found.token else None
        return None if known is None else (*known, False)

    def _read(self, found: KeyValue) -> tuple[bytes, int] | None:
        run = found.value[:_RUN_BYTES]
        try:
            rendezvous = load_state(found.value[_RUN_BYTES:])
        except UnsafeStateError as error:
            raise RendezvousStateError(f"the state of run {self.keys.run_id!r} is not torch's: {error}") from error
        if run != self.run and self._is_over(rendezvous):
            self._over = found.token
            return None
        self.run, self._over = run, None
        return dump_state(rendezvous), found.token

    def _is_over(self, rendezvous: Any) -> bool:
        silent_since = datetime.now(UTC) - timedelta(seconds=self._silence_s)
        heard: list[datetime] = list(rendezvous.last_heartbeats.values())
        return bool(rendezvous.closed) and all(at < silent_since for at in heard)


class CoordinatorRendezvous(DynamicRendezvousHandler):
    """torch's own handler, with a store for each round: its first node serves it, and the coordinator says where."""

    def take_keys(self, backend: CoordinatorBackend, *, store_timeout_s: float) -> None:
        """Take what the rounds need; called once, by whoever made the handler."""
        self._strata = backend
        self._store_timeout_s = store_timeout_s

    def _get_store(self) -> Store:
        rank, _ = self._get_world()
        round_number = self._state_holder.state.round
        self._store = self._serve_store(round_number) if rank == 0 else self._find_store(round_number)
        # Where the workers meet is told anew in each round: who told it in the last one may be gone.
        self._bootstrap_store_info = None
        return super()._get_store()

    def _serve_store(self, round_number: int) -> TCPStore:
        address = self._this_node.addr
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=self._timeout())
        place = json.dumps([self._strata.run.hex(), round_number, address, store.port]).encode()
        found = self._strata.keys.get("store")
        while not (found := self._strata.keys.set("store", place, found.token)).is_set:
            pass
        return store

    def _find_store(self, round_number: int) -> TCPStore:
        deadline_s = time.monotonic() + self._store_timeout_s
        while time.monotonic() < deadline_s:
            found = self._strata.keys.get("store")
            if found.token:
                run, at_round, address, port = json.loads(found.value)
                if (run, at_round) == (self._strata.run.hex(), round_number):
                    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=self._timeout())
            time.sleep(POLL_S)
        raise RendezvousConnectionError(
            f"the first node of round {round_number} served no store within {self._store_timeout_s:g} s; "
            "look at its log, or raise --rdzv-conf=store_timeout"
        )

    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._store_timeout_s)


class _Keys:
    """The keys of one run. A coordinator that is away is asked again until its time is up."""

    def __init__(self, url: str, job_id: str, run_id: str, *, outage_s: float) -> None:
        self.run_id = run_id
        self._url = url
        self._job_id = job_id
        self._outage_s = outage_s

    def get(self, name: str) -> KeyValue:
        return self._insist(lambda: get_key(self._url, self._job_id, self._key(name)))

    def set(self, name: str, value: bytes, token: int) -> KeyValue:
        writer = uuid.uuid4().hex
        return self._insist(
            lambda: set_key(self._url, self._job_id, self._key(name), value, token=token, writer=writer)
        )

    def _key(self, name: str) -> str:
        return f"torchrun/{self.run_id}/{name}"

    def _insist(self, ask: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + self._outage_s
        failures = 0
        while True:
            try:
                return ask()
            except (CoordinatorLostError, JournalUnavailableError, NotLeaderError) as error:
                if time.monotonic() > deadline_s:
                    raise RendezvousConnectionError(str(error)) from error
            except StrataError as error:
                raise RendezvousConnectionError(str(error)) from error
            chance = random.random()  # noqa: S311 - to spread the nodes, not to hide
            time.sleep(backoff_s(failures, first_s=POLL_S, max_s=MAX_BACKOFF_S, chance=chance))
            failures += 1


def _seconds(params: RendezvousParameters, name: str, default: int) -> int:
    value: Any = params.get_as_int(name, default)
    if value is None or value <= 0:
        raise ValueError(f"--rdzv-conf {name}={value}; use a whole number above 0")
    return int(value)


def _timeout(params: RendezvousParameters, name: str) -> timedelta | None:
    value = params.get_as_int(f"{name}_timeout")
    return None if value is None else timedelta(seconds=value)
