"""A pytest plugin: how ``pytest -n 4 --dist loadgroup`` shares the tests between its processes.

A file's tests stay in one process, in their order, so that what a module sets up is set up once. Tests with
``@pytest.mark.xdist_group(name)`` stay in one process across files: two of a group never run beside each other.
Tests with ``@pytest.mark.timing`` depend on the speed of the machine. They run last, one after the other, when all
other processes have ended.

| group | its tests | why one at a time |
|---|---|---|
| mounts | those with ``part("faults")`` | they mount file systems and take loop devices, of which a machine has few |
| whole runs | whole jobs, torchrun, the demonstration, the simulator | each keeps every core busy by itself |

Files and groups are handed out by the longest limit of time that one of their tests has, so that short tests come last
and the processes end together. xdist's own order, by the number of tests, left one process alone with a few long ones.

xdist knows a test by its name and would run one of several with the same name. Such tests are refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALONE = "alone"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that mount something, or run alone, into one group, and order the groups for the processes of xdist."""
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.xdist_group(ALONE))
        elif any(marker.args == ("faults",) for marker in item.iter_markers("part")):
            item.add_marker(pytest.mark.xdist_group("mounts"))
    if hasattr(config, "workerinput"):
        limits_s: dict[str, float] = defaultdict(float)
        for item in items:
            limits_s[_unit(item)] = max(limits_s[_unit(item)], _limit_s(item))
        items.sort(key=lambda item: (_unit(item) == ALONE, -limits_s[_unit(item)]))
    else:
        _refuse_repeated(item.nodeid for item in items)


def _refuse_repeated(names: Iterable[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise pytest.UsageError(f"several tests have the same name, and xdist would run one of them: {repeated}")


def _unit(item: pytest.Item) -> str:
    if item.get_closest_marker("timing"):
        return ALONE
    group = item.get_closest_marker("xdist_group")
    return item.nodeid.split("::", 1)[0] if group is None else str(group.args[0])


def _limit_s(item: pytest.Item) -> float:
    own = item.get_closest_marker("timeout")
    return 0.0 if own is None else float(own.args[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Return the scheduler for ``--dist loadgroup``; all other modes are xdist's own."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduler(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # xdist writes a test's group behind its name.
            has_group = nodeid.rfind("@") > nodeid.rfind("]")
            return nodeid.rsplit("@", 1)[1] if has_group else nodeid.split("::", 1)[0]

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            _refuse_repeated(collection)
            super().add_node_collection(node, collection)

        def remove_node(self, node: Any) -> str | None:
            """Count the test that ended its process as done: xdist would give it to the next process, too."""
            units = self.assigned_work[node]
            unfinished = ((unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done)
            unit, test = next(unfinished, (None, None))
            if unit is not None:
                unit[test] = True
            # A unit with nothing left to do must not be handed out: the process that gets it waits for ever.
            self.assigned_work[node] = {name: unit for name, unit in units.items() if not all(unit.values())}
            super().remove_node(node)
            for other in self.nodes:
                self._reschedule(other)
            return test

        def _reschedule(self, node: Any) -> None:
            """Hand out the tests that run alone when one process is left: the others end as they run out of tests."""
            if list(self.workqueue) == [ALONE] and len(self.nodes) > 1:
                if any(other is not node and not other.shutting_down for other in self.nodes):
                    node.shutdown()
                return
            super()._reschedule(node)

        def _assign_work_unit(self, node: Any) -> None:
            if list(self.workqueue) != [ALONE] or len(self.nodes) == 1:
                super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return Scheduler(config, log)
