"""Work that is given to a manager runs while it closes only if something pending may wait for it."""

from __future__ import annotations

import pytest

from strata.checkpoint.save.background_work import BackgroundWork
from strata.errors import ManagerClosedError
from tests.testbed.pace import stretch


async def give(value: int) -> int:
    return value


def test_work_is_served_while_something_is_pending_and_not_after() -> None:
    work = BackgroundWork()
    pending = work.promise()
    work.refuse_more()
    assert work.serve(give(1)).result(stretch(30)) == 1
    pending.set_result(None)
    assert work.wait(stretch(30))
    with pytest.raises(ManagerClosedError):
        work.serve(give(2))
    work.close()


def test_who_closes_takes_no_promise_and_no_work_of_its_own() -> None:
    work = BackgroundWork()
    work.refuse_more()
    with pytest.raises(ManagerClosedError):
        work.promise()
    with pytest.raises(ManagerClosedError):
        work.submit(give(1))
    assert not work.has_pending()
    work.close()
