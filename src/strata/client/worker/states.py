"""Where a worker is with its coordinator, and what moves it from there.

What an error means is said by its class, and what the worker does then is this table:

    error of ...               RETRY               REJOIN                                     STOP
    a registration             register again      register again, in the next life           refused for good
    a heartbeat                the next one        register again if the worker is unknown    only logged
    anything else              ask again           answered; register again if unknown        answered

A coordinator that does not lead is left, whatever it was asked: it changed nothing, and the leader is asked again.
"""

from __future__ import annotations

from enum import Enum, auto

from strata.errors import StaleIncarnationError, UnknownJobError, UnknownWorkerError

NOT_A_MEMBER = (StaleIncarnationError, UnknownWorkerError, UnknownJobError)
"""The coordinator does not know the sender as a member: it was declared dead, or the coordinator lost its journal."""


class State(Enum):
    """The states of a worker's protocol.

    state          connected   registered   lost, or not the leader   refused    close
    DISCONNECTED   JOINING     -            -                         REFUSED    CLOSED
    JOINING        JOINING     JOINED       DISCONNECTED              REFUSED    CLOSED
    JOINED         JOINING     -            DISCONNECTED              REFUSED    CLOSED
    """

    DISCONNECTED = auto()
    JOINING = auto()
    JOINED = auto()
    REFUSED = auto()
    CLOSED = auto()
