"""After which step all workers save, once one of them was told to stop.

Where saves follow from the step number alone, the workers do not meet. So a worker that gets SIGTERM sets a key of the
job; every worker's monitor thread looks at it about once a second, and arrives at a meeting with the number of the step
that its training thread works on. All save after the largest of them. Because a thread of its own arrives, a worker
that is inside a collective cannot hold the meeting up; and no training thread goes beyond the step that it named before
the meeting is over.
"""

from __future__ import annotations

import logging
import struct
import threading
import time

from strata.cluster.values import RankInfo
from strata.errors import Reconfigure, StrataError
from strata.run.loop.stopping import StopSignal
from strata.run.team.protocol import Team
from strata.run.watchdog.waits import Waits

log = logging.getLogger(__name__)

LOOK_S = 1.0
MEET_S = 60.0
_STEP = struct.Struct("<q")


class StopAgreement:
    """One generation after the other, the step after which all save because one stops; None while nobody does."""

    def __init__(self, team: Team, waits: Waits, stop: StopSignal) -> None:
        self._team = team
        self._waits = waits
        self._stop = stop
        self._lock = threading.Lock()
        self._rank_info: RankInfo | None = None
        self._done = 0
        self._looked_s = 0.0
        self._named: int | None = None
        self._agreed: int | None = None
        self._is_decided = threading.Event()

    def enter(self, rank_info: RankInfo, step: int) -> None:
        """Begin in a generation, after this step."""
        with self._lock:
            self._rank_info, self._done = rank_info, step
            self._named = self._agreed = None
            self._is_decided = threading.Event()

    def leave(self) -> None:
        """Take part in no meeting more: the loop is over."""
        with self._lock:
            self._rank_info = None

    def tick(self, now_s: float) -> None:
        """Look whether anybody stops, and name the step that this worker works on; from the monitor thread."""
        rank_info = self._rank_info
        if rank_info is None or self._named is not None:
            return
        if self._stop.is_set():
            self._team.request_stop(rank_info)
        elif now_s - self._looked_s < LOOK_S or rank_info.world_size == 1:
            return
        elif not self._team.is_stop_requested(rank_info):
            self._looked_s = now_s
            return
        with self._lock:
            if self._rank_info is not rank_info:
                return
            self._named = self._done + 1
            arguments = (rank_info, self._named, self._is_decided)
        threading.Thread(target=self._meet, args=arguments, name="strata-stop", daemon=True).start()

    def is_reached(self, step: int) -> bool:
        """Note that a step is done; return whether all save now because one of them stops. May raise Reconfigure."""
        with self._lock:
            self._done = step
            rank_info, named, is_decided = self._rank_info, self._named, self._is_decided
        if rank_info is None or named is None or step < named:
            return False
        deadline_s = time.monotonic() + MEET_S
        with self._waits.waiting("a worker stops, and all agree after which step they save", timeout_s=MEET_S):
            while not is_decided.wait(0.05) and time.monotonic() < deadline_s:
                self._team.check(rank_info)
        return self._agreed is not None and step >= self._agreed

    def has_failed(self) -> bool:
        """Whether the workers could not agree: a worker that was told to stop leaves without a last save."""
        if self._rank_info is None:
            return False
        if self._named is None:
            # The coordinator cannot be reached.
            return self._stop.waited_s() > MEET_S / 4
        return self._is_decided.is_set() and self._agreed is None

    def _meet(self, rank_info: RankInfo, named: int, is_decided: threading.Event) -> None:
        try:
            steps = self._team.exchange(rank_info, "stop", _STEP.pack(named), timeout_s=MEET_S)
            agreed = max(_STEP.unpack(each)[0] for each in steps)
            with self._lock:
                if self._rank_info is rank_info:
                    self._agreed = agreed
            log.info("a worker stops: all save after step %d", agreed)
        except Reconfigure as error:
            log.debug("%s", error)
        except StrataError as error:
            log.warning("a worker stops without a last save of all: %s", error)
        finally:
            is_decided.set()
