"""The workers of a machine start in rounds: all of them together, or not at all."""

from __future__ import annotations

import asyncio

from strata.run.launch.group.start_gate import StartGate
from strata.run.launch.group.torch_variables import Start


class Rounds:
    """Forms rounds, and records them; a round may be held up."""

    def __init__(self) -> None:
        self.formed: list[tuple[int, tuple[int, ...]]] = []
        self.may_form = asyncio.Event()
        self.may_form.set()

    async def form(self, number: int, members: tuple[int, ...]) -> Start | None:
        await self.may_form.wait()
        self.formed.append((number, members))
        return Start(master_addr="h", master_port=number, ranks=dict(enumerate(members)), world_size=len(members))


async def entered(*tasks: asyncio.Task[Start | None]) -> list[int | None]:
    starts = await asyncio.gather(*tasks)
    return [None if start is None else start.master_port for start in starts]


async def test_nobody_starts_before_all_are_there() -> None:
    rounds = Rounds()
    gate = StartGate(range(2), rounds.form)
    first = asyncio.create_task(gate.enter(0))
    await asyncio.sleep(0)
    assert rounds.formed == []
    assert await entered(first, asyncio.create_task(gate.enter(1))) == [0, 0]
    assert rounds.formed == [(0, (0, 1))]


async def test_one_that_starts_again_alone_joins_the_round_that_runs() -> None:
    rounds = Rounds()
    gate = StartGate(range(2), rounds.form)
    await entered(*(asyncio.create_task(gate.enter(each)) for each in range(2)))
    assert await entered(asyncio.create_task(gate.enter(1))) == [0]
    assert len(rounds.formed) == 1


async def test_after_the_end_of_a_round_all_start_again_without_those_who_left() -> None:
    rounds = Rounds()
    gate = StartGate(range(3), rounds.form)
    await entered(*(asyncio.create_task(gate.enter(each)) for each in range(3)))
    gate.end_round()
    waiting = [asyncio.create_task(gate.enter(each)) for each in (0, 2)]
    await asyncio.sleep(0)
    gate.leave(1)
    assert await entered(*waiting) == [1, 1]
    assert rounds.formed[-1] == (1, (0, 2))


async def test_a_round_that_ends_while_it_is_formed_is_formed_again() -> None:
    rounds = Rounds()
    gate = StartGate(range(1), rounds.form)
    rounds.may_form.clear()
    waiting = asyncio.create_task(gate.enter(0))
    await asyncio.sleep(0)
    gate.end_round()
    rounds.may_form.set()
    assert await entered(waiting) == [1]


async def test_nobody_waits_at_a_gate_that_was_closed() -> None:
    rounds = Rounds()
    gate = StartGate(range(2), rounds.form)
    waiting = asyncio.create_task(gate.enter(0))
    await asyncio.sleep(0)
    gate.close()
    assert await entered(waiting, asyncio.create_task(gate.enter(1))) == [None, None]
    assert rounds.formed == []


async def test_a_round_that_cannot_be_formed_closes_the_gate() -> None:
    async def form(_number: int, _members: tuple[int, ...]) -> Start | None:
        return None

    gate = StartGate(range(1), form)
    assert await gate.enter(0) is None
