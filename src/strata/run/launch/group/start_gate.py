"""Where the workers of one machine wait until their group starts: all of them together, in rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from strata.run.launch.group.torch_variables import Start

Form = Callable[[int, tuple[int, ...]], Awaitable[Start | None]]


class StartGate:
    """One round is one start of the group. It begins when all members are here, and ends when one of them fails.

    ``form`` agrees on the start of a round with the other machines: it gets the number of rounds that ended here before
    and the members, and returns None if there will be no other round. It is cancelled when its round ends.
    """

    def __init__(self, members: Iterable[int], form: Form) -> None:
        self.number = 0
        self.members = set(members)
        self._agree = form
        self._waiting: dict[int, asyncio.Future[Start | None]] = {}
        self._begun: Start | None = None
        self._forming: asyncio.Task[None] | None = None
        self._is_closed = False

    async def enter(self, member: int) -> Start | None:
        """Return the start of the present round, at once if it has begun; None if no other one will begin."""
        if self._begun is not None or self._is_closed:
            return self._begun
        future: asyncio.Future[Start | None] = asyncio.get_running_loop().create_future()
        self._waiting[member] = future
        self._form_if_all_are_here()
        return await future

    @property
    def has_begun(self) -> bool:
        """Whether the members of the present round may run."""
        return self._begun is not None

    def end_round(self) -> None:
        """The members start again, together: who enters from now on waits for the others."""
        self.number += 1
        self._begun = None
        self._stop_forming()
        self._form_if_all_are_here()

    def renew(self) -> None:
        """Agree on the start again while the members run on: who is started again from then on has the new one."""
        self._stop_forming()
        self._form()

    def leave(self, member: int) -> None:
        """Go on without a member; the others wait for it no longer."""
        self.members.discard(member)
        self._form_if_all_are_here()

    def close(self) -> None:
        """Refuse further starts, and end all waits."""
        self._is_closed = True
        self._begun = None
        self._stop_forming()
        self._let_go(None)

    def _form_if_all_are_here(self) -> None:
        if self._waiting and self._waiting.keys() == self.members and self._forming is None and not self._is_closed:
            self._form()

    def _form(self) -> None:
        self._forming = asyncio.get_running_loop().create_task(self._begin(), name="start of the group")

    def _stop_forming(self) -> None:
        if self._forming is not None:
            self._forming.cancel()
            self._forming = None

    async def _begin(self) -> None:
        try:
            start = await self._agree(self.number, tuple(sorted(self.members)))
        except Exception as error:
            self._forming = None
            waiting = self._take_waiting()
            for future in waiting:
                future.set_exception(error)
            if not waiting:
                raise
            return
        self._forming = None
        self._begun, self._is_closed = start, start is None
        self._let_go(start)

    def _let_go(self, start: Start | None) -> None:
        for future in self._take_waiting():
            future.set_result(start)

    def _take_waiting(self) -> list[asyncio.Future[Start | None]]:
        waiting, self._waiting = self._waiting, {}
        return [future for future in waiting.values() if not future.done()]
