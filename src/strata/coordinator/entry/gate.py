"""The gate: who is asking. Every transport asks it once a connection, or once a call where there is none.

It never waits: Strata's own tokens are a lookup and a hash, and an issuer's are remembered once they were checked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

from strata.cluster.access import DEFAULT_TENANT, LOCAL, Principal, Role
from strata.cluster.events import Event
from strata.coordinator.entry.attempts import FailedAttempts, Failure
from strata.coordinator.entry.secret_tokens import MAX_BYTES, hash_secret, is_secret, split_token
from strata.errors import NotLeaderError, UnauthenticatedError

if TYPE_CHECKING:
    from strata.cluster.access.access_registry import TokenRecord
    from strata.coordinator.dispatcher import Dispatcher
    from strata.coordinator.entry.admin_token import AdminToken
    from strata.coordinator.entry.oidc import OidcIssuer

MAX_REMEMBERED = 10_000
MAX_WAITING = 500
SWEEP_S = 0.25
# The keys of an issuer are asked for this often, and when a token names an unknown one. A key that left the issuer's
# list counts for so long at most.
KEYS_S = 300.0
ADMIN = Principal("admin", DEFAULT_TENANT, Role.ADMIN)
REFUSED = "access refused"
"""The kind of the events that tell of failed attempts."""
COORDINATOR = "/"
"""In place of a job, for what concerns the coordinator itself: it is no tenant's, so only an administrator sees it."""
_SCHEME = "bearer "


class UnknownKeyError(Exception):
    """A token names a key of its issuer that is not known yet; the issuer must be asked, which takes a while."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Someone who was let in, from where, and what must stay valid for that."""

    principal: Principal
    address: str
    key: str = ""
    """The id of a token; "=" and a hash for one that no journal knows; nothing where nobody is asked."""
    issued: IssuedToken | None = None
    """What an issuer's token says, which must stay true."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token of an issuer that was checked: whose it is, when it ends, and which key of the issuer signed it."""

    principal: Principal
    ends_s: float
    signed_by: str


@lru_cache(maxsize=MAX_REMEMBERED)
def _principal(name: str, tenant: str, role: Role, jobs: str) -> Principal:
    """Return the same one for the same token: to make one takes as long as all else about a token."""
    return Principal(name, tenant, role, jobs)


class Gate:
    """Who gets in. It is open where nothing was set up: no administrator's token, no issuer, no token in the journal.

    Made on the coordinator's loop. :meth:`admit`, :meth:`refuse` and :meth:`is_valid` may be called in any thread.
    """

    def __init__(
        self, dispatcher: Dispatcher, *, admin: AdminToken | None = None, issuer: OidcIssuer | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._admin = admin
        self.issuer = issuer
        self.attempts = FailedAttempts()
        self._remembered: dict[str, IssuedToken] = {}
        # Who brought a header before, by its hash: a secret is kept nowhere.
        self._recalled: dict[bytes, tuple[Caller, TokenRecord | None]] = {}
        self._held: dict[Caller, set[Callable[[str], None]]] = {}
        self._waiting = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.is_open = False
        self.decide()

    def decide(self) -> None:
        """Be open or not from now on; for a coordinator that begins to serve, or to lead.

        In between nothing changes: a token that is made on an open coordinator locks nobody out before the next start.
        """
        is_set_up = self._admin is not None or self.issuer is not None
        self.is_open = not is_set_up and not self._dispatcher.cluster.access.tokens()

    def admit(self, authorization: str | None, address: str) -> Caller:
        """Return who brings this header, or raise UnauthenticatedError, or UnknownKeyError of an issuer.

        A standby does not know the tokens of its cluster, and lets nobody in: it raises NotLeaderError. So does a
        leader in doubt for a token that it does not accept: another replica may have made it since.
        """
        if (not_leader := self._dispatcher.refuse()) is not None:
            raise not_leader
        try:
            return self._admit(authorization, address)
        except UnauthenticatedError:
            if self._dispatcher.is_in_doubt:
                raise NotLeaderError("", term=0) from None
            raise

    def _admit(self, authorization: str | None, address: str) -> Caller:
        if self.is_open:
            # Whatever it brought: a token may be meant for the coordinator that had this port before.
            return Caller(LOCAL, address)
        if authorization is None:
            raise UnauthenticatedError("it brought no token")
        if len(authorization) > MAX_BYTES + len(_SCHEME) or authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise UnauthenticatedError("it brought no token that can be read")
        token = authorization[len(_SCHEME) :]
        parts = split_token(token)
        record = None if parts is None else self._dispatcher.cluster.access.token(parts[0])
        if parts is not None and record is not None:
            if not is_secret(parts[1], record.sha256):
                raise UnauthenticatedError("its token is not known")
            if record.ended_s(self._dispatcher.now_s()) is not None:
                raise UnauthenticatedError(f"its token {record.name!r} was revoked or has expired")
            return Caller(_principal(record.name, record.tenant, record.role, record.jobs), address, record.token_id)
        if self._admin is not None and self._admin.matches(token):
            return Caller(ADMIN, address, f"={self._admin.sha256}")
        if self.issuer is not None and token.count(".") == 2:
            return self._admit_issued(self.issuer, token, address)
        raise UnauthenticatedError("its token is not known")

    def recall(self, authorization: str | None) -> Caller | None:
        """Return who brings this header if they were let in with it before and still would be; None says nothing.

        For calls without a connection, where each asks: it costs one hash. Only on the coordinator's loop.
        """
        if authorization is None or len(authorization) > MAX_BYTES or self._dispatcher.refuse() is not None:
            return None
        found = self._recalled.get(sha256(authorization.encode("utf-8", "surrogatepass")).digest())
        if found is None:
            return None
        caller, record = found
        if record is None:
            return caller if self.is_valid(caller) else None
        # Another record of this id, as of a cluster that was read again, is looked at anew.
        if self._dispatcher.cluster.access.token(caller.key) is not record or record.revoked_s is not None:
            return None
        if record.expires_s is not None and record.expires_s <= self._dispatcher.now_s():
            return None
        return caller

    def remember(self, authorization: str | None, caller: Caller) -> None:
        """Let :meth:`recall` find someone who was let in with this header."""
        if authorization is None or not caller.key:
            return
        record = None if caller.key.startswith("=") else self._dispatcher.cluster.access.token(caller.key)
        while len(self._recalled) >= MAX_REMEMBERED:
            del self._recalled[next(iter(self._recalled))]
        self._recalled[sha256(authorization.encode("utf-8", "surrogatepass")).digest()] = caller, record

    async def admit_patiently(self, authorization: str | None, address: str) -> Caller:
        """Do the same, and ask the issuer for a key that is not known."""
        try:
            return self.admit(authorization, address)
        except UnknownKeyError:
            assert self.issuer is not None
            await _finish(self.issuer)
        try:
            return self.admit(authorization, address)
        except UnknownKeyError:
            raise UnauthenticatedError("its token is signed with a key that its issuer does not name") from None

    async def slow_down(self, address: str, problem: str) -> None:
        """Note a failed attempt, and return when it may be answered; so many wait at a time, and no more."""
        delay_s = self.refuse(address, problem).delay_s
        if delay_s and self._waiting < MAX_WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(delay_s)
            finally:
                self._waiting -= 1

    def refuse(self, address: str, problem: str) -> Failure:
        """Note a failed attempt; return how long its answer has to wait."""
        now_s = self._dispatcher.now_s()
        failure = self.attempts.note(address, now_s)
        if failure.to_tell:
            times = f"{failure.to_tell} times" if failure.to_tell > 1 else "once"
            reason = f"a client at {address} was refused {times}: {problem}"
            event = Event(now_s, COORDINATOR, None, REFUSED, reason, address=address)
            with suppress(RuntimeError):  # the loop is closed: the coordinator ends
                self._loop.call_soon_threadsafe(self._dispatcher.tell, event)
        return failure

    def is_valid(self, caller: Caller) -> bool:
        """Whether someone who was let in would be let in again."""
        if not caller.key:
            return self.is_open
        if caller.key.startswith("="):
            if self._admin is not None and caller.key == f"={self._admin.sha256}":
                return True
            return caller.issued is not None and self._is_current(caller.issued)
        record = self._dispatcher.cluster.access.token(caller.key)
        return record is not None and record.ended_s(self._dispatcher.now_s()) is None

    def hold(self, caller: Caller, hang_up: Callable[[str], None]) -> Callable[[], None]:
        """Have a lasting connection hung up on when its token ends; call what this returns when it is closed."""
        # By token, of which there are few, and not by address: they are looked through several times a second.
        grant = replace(caller, address="")
        held = self._held.setdefault(grant, set())
        held.add(hang_up)

        def let_go() -> None:
            held.discard(hang_up)
            if not held and self._held.get(grant) is held:
                del self._held[grant]

        return let_go

    async def watch(self) -> None:
        """Hang up on connections whose token ends, and keep the issuer's keys fresh, until cancelled."""
        due_s = self._loop.time()
        while True:
            if self.issuer is not None and self._loop.time() >= due_s:
                # Not waited for: an issuer that does not answer must not hold up those whose token was revoked.
                self.issuer.ask_for_keys()
                due_s = self._loop.time() + KEYS_S
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        """Hang up on every connection whose token has ended."""
        for caller in [each for each in self._held if not self.is_valid(each)]:
            for hang_up in list(self._held.get(caller, ())):
                hang_up(f"the token {caller.principal.name!r} was revoked or has expired")

    def _admit_issued(self, issuer: OidcIssuer, token: str, address: str) -> Caller:
        key = f"={hash_secret(token)}"
        known = self._remembered.get(key)
        if known is None or not self._is_current(known):
            known = issuer.check(token)
            with self._lock:
                self._remembered.pop(key, None)
                while len(self._remembered) >= MAX_REMEMBERED:
                    del self._remembered[next(iter(self._remembered))]
                self._remembered[key] = known
        return Caller(known.principal, address, key, known)

    def _is_current(self, issued: IssuedToken) -> bool:
        """Whether a token that was checked would pass again: it has not expired, and its key is still its issuer's."""
        return (
            issued.ends_s > self._dispatcher.now_s() and self.issuer is not None and self.issuer.lists(issued.signed_by)
        )


async def _finish(issuer: OidcIssuer) -> None:
    """Return when the issuer's keys were asked for; who gives up waiting ends nobody else's question."""
    await asyncio.shield(asyncio.wrap_future(issuer.ask_for_keys()))
