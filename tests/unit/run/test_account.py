"""Where a worker's time goes: every second is in one part, whatever happens in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.values import PARTS
from strata.run.loop.account import TimeAccount

ACTIONS = st.lists(
    st.tuples(
        st.floats(0, 100),
        st.sampled_from([*PARTS, "end", "restored", "done", "blocked", "finished", "read"]),
        st.integers(0, 20),
    ),
    max_size=60,
)


def seconds(account: TimeAccount, now_s: float) -> dict[str, float]:
    elapsed_s, *parts = account.read(now_s)
    assert abs(sum(parts) - elapsed_s) < 1e-6
    return {name: round(part, 6) for name, part in zip(PARTS, parts, strict=True) if part}


@given(actions=ACTIONS)
def test_the_parts_always_add_up_to_the_time_since_the_beginning(actions: list[tuple[float, str, int]]) -> None:
    account, now_s, depth, before = TimeAccount(5.0), 5.0, 0, 0.0
    for passed_s, action, step in actions:
        now_s += passed_s
        match action:
            case "end":
                if depth:
                    depth -= 1
                    account.end(now_s)
            case "restored":
                account.restored(step, now_s)
            case "done":
                account.done(step, now_s)
            case "blocked":
                account.blocked(passed_s)
            case "finished":
                account.finished(now_s)
            case "read":
                seconds(account, now_s)
            case part:
                depth += 1
                account.begin(part, now_s)
        elapsed_s, *parts = account.read(now_s)
        assert all(part >= 0 for part in parts)
        assert abs(sum(parts) - elapsed_s) < 1e-6 * max(1.0, elapsed_s)
        assert elapsed_s >= before
        before = elapsed_s
    assert abs(before - (now_s - 5.0)) < 1e-6 * max(1.0, now_s)


def test_a_run_is_divided_into_its_parts() -> None:
    account = TimeAccount(0.0)
    account.begin("wait", 1.0)
    account.end(3.0)
    account.begin("restore", 3.0)
    account.begin("wait", 3.5)  # meeting the others in order to restore is restoring
    account.end(4.5)
    account.end(5.0)
    account.restored(0, 5.0)
    account.begin("data", 5.0)
    account.end(6.0)
    account.done(1, 10.0, samples=32)
    account.begin("save", 10.0)
    account.end(10.5)
    account.finished(11.0)
    assert seconds(account, 12.0) == {
        "compute": 4.5,
        "data": 1.0,
        "save": 0.5,
        "restore": 2.0,
        "wait": 2.0,
        "other": 2.0,
    }
    assert (account.steps, account.repeated_steps, account.samples) == (1, 0, 32)


def test_steps_that_are_done_again_and_a_step_that_was_cut_off_are_lost_time() -> None:
    account = TimeAccount(0.0)
    account.restored(0, 0.0)
    for step in (1, 2, 3):
        account.done(step, float(step))
    account.restored(1, 3.5)  # half a second of step 4 is lost with it
    account.done(2, 4.5)
    account.done(3, 5.5)
    account.done(4, 6.5)
    assert seconds(account, 6.5) == {"compute": 4.0, "repeated": 2.5}
    assert (account.steps, account.repeated_steps) == (6, 2)


def test_an_optimizer_that_waited_for_a_save_was_held_up_by_it() -> None:
    account = TimeAccount(0.0)
    account.restored(0, 0.0)
    account.done(1, 10.0)
    account.blocked(4.0)
    assert seconds(account, 10.0) == {"compute": 6.0, "save": 4.0}
