"""Mutation testing: change one thing in the code, and see whether a test notices.

    python -m scripts.mutate [--mutants 40] [--seed 1] [PACKAGE...]

cosmic-ray makes the mutants. No file is changed: pytest collects the tests once, and for each mutant a forked process
replaces the code of one function and runs the tests of its package until one fails: first those that execute the
changed line, the fastest first, then, for packages with ``worlds``, some seeds of the simulator, then the other tests.

A mutant that survives fails the run, unless tests/mutants.toml explains it.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import os
import pickle
import random
import resource
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import FunctionType
from typing import Any

# The core that knows which test runs a line; newer versions of Python have a faster one by default that does not.
os.environ["COVERAGE_CORE"] = "ctrace"

import coverage
import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.mutant_operators import ROOT, Mutant, find_mutants
from scripts.mutants import MutantKey, explained, is_stale
from scripts.parts import PARTS
from tests.testbed.pace import stretch

EXPLAINED = ROOT / "tests" / "mutants.toml"
# Each test has this much CPU time, and this many times what it took without a mutant; so has the wait for all of them.
LEAST_S = 5.0
TIMES = 5.0
BASELINE_S = 3_600.0
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Package:
    """What is mutated together, and what must notice it: tests of ``make test``, and those that need these parts."""

    source: str
    tests: str
    worlds: int = 0
    parts: frozenset[str] = frozenset()

    def includes(self, item: pytest.Item) -> bool:
        """Whether a test is to notice mutants of this package."""
        needed = {part for marker in item.iter_markers("part") for part in marker.args}
        is_long = item.get_closest_marker("full") is not None and not needed
        return item.path.is_relative_to(ROOT / self.tests) and needed <= self.parts and not is_long


PACKAGES = {
    "cluster": Package(source="src/strata/cluster", tests="tests/unit/cluster", worlds=20),
    "worker": Package(source="src/strata/client/worker", tests="tests/unit/client", worlds=20),
    "format": Package(
        source="src/strata/checkpoint/format", tests="tests/unit/checkpoint", parts=frozenset({"torch", "jax"})
    ),
    "sharding": Package(source="src/strata/sharding", tests="tests/unit/sharding"),
    "wire": Package(source="src/strata/wire", tests="tests/unit/wire"),
}


class Outcome(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    KILLED_BY_WORLD = "killed by a simulated world"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    EXPLAINED = "survived, and is explained"


@dataclass
class Baseline:
    """How much CPU time each test takes without a mutant, and which tests run which line."""

    failed: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    worlds_s: float = 0.0


class Mutator:
    """A pytest plugin that runs tests on mutants instead of once."""

    def __init__(self, packages: list[str], *, count: int, seed: int, console: Console) -> None:
        self._packages = packages
        self._count = count
        self._seed = seed
        self._console = console
        self._reasons = explained(EXPLAINED.read_text())
        self._failed = False
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        self._caches: list[Any] = []
        self.unexplained = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Do not let hypothesis shrink: that a test fails is enough."""
        from hypothesis import Phase, settings  # not above: pytest wants to import its plugins itself

        fast = settings.get_profile("fast")
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", fast, phases=phases, report_multiple_bugs=False, database=None)
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each package on its mutants, and print what survived."""
        stretch(1.0)  # the machine is measured here once, and not in every process that is forked
        if any(PACKAGES[name].worlds for name in self._packages):
            import tests.simulation.world  # noqa: F401 - loaded once, and not in every fork
        for thing in gc.get_objects():
            if type(thing) is FunctionType and str(thing.__module__).startswith("strata."):
                code = thing.__code__
                self._functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(thing)
            elif type(thing) is functools._lru_cache_wrapper and str(thing.__module__).startswith("strata."):
                self._caches.append(thing)
        gc.freeze()
        for name in self._packages:
            self._run_package(name, [item for item in session.items if PACKAGES[name].includes(item)])
        return True

    def _run_package(self, name: str, items: list[pytest.Item]) -> None:
        package = PACKAGES[name]
        columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
        outcomes: Counter[Outcome] = Counter()
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(f"{name}: tests without a mutant", total=len(items))
            baseline = in_child(lambda: self._measure(package, items), limit_s=BASELINE_S)
            if not isinstance(baseline, Baseline) or baseline.failed:
                pytest.exit(f"the tests of {name} fail without a mutant: {getattr(baseline, 'failed', baseline)}", 3)
            mutants = list(find_mutants(ROOT / package.source, self._count, random.Random(f"{name} {self._seed}")))
            progress.update(task, description=f"{name}: mutants", total=len(mutants), completed=0)
            for mutant in mutants:
                outcome, tests = self._try(mutant, package, items, baseline)
                outcomes[outcome] += 1
                if outcome is Outcome.SURVIVED:
                    # At once: a run that is interrupted has said what it found.
                    key = mutant.key
                    place = f"  {key.file}:{mutant.line} {key.function} ({tests} tests run it)"
                    self._print(f"{place}\n    - {key.before}\n    + {key.after}")
                progress.advance(task)
        figures = ", ".join(f"{outcomes[each]} {each}" for each in Outcome)
        self._print(f"{name}: {sum(outcomes.values())} mutants: {figures}")
        self.unexplained += outcomes[Outcome.SURVIVED]

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _measure(self, package: Package, items: list[pytest.Item]) -> Baseline:
        baseline = Baseline()
        tracer = coverage.Coverage(data_file=None, include=[f"{ROOT / package.source}/*"], config_file=False)
        tracer.start()
        for item in items:
            tracer.switch_context(item.nodeid)
            begun_s = time.process_time()
            if not self._passes(item):
                baseline.failed = item.nodeid
                return baseline
            baseline.seconds[item.nodeid] = time.process_time() - begun_s
        tracer.stop()
        data = tracer.get_data()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                baseline.tests[file, line] = set(contexts)
        begun_s = time.process_time()
        _run_worlds(package.worlds)
        baseline.worlds_s = time.process_time() - begun_s
        return baseline

    def _try(
        self, mutant: Mutant, package: Package, items: list[pytest.Item], baseline: Baseline
    ) -> tuple[Outcome, int]:
        if mutant.key in self._reasons:
            return Outcome.EXPLAINED, 0
        names = set().union(*(baseline.tests.get((str(mutant.path), line), ()) for line in mutant.statement))
        items = sorted(items, key=lambda item: baseline.seconds[item.nodeid])
        likely = [item for item in items if item.nodeid in names]
        # What was cached when the baseline ran was not run again, so the other tests may use the line too.
        others = [item for item in items if item.nodeid not in names]

        def run(chosen: list[pytest.Item], worlds: int) -> Outcome:
            self._put_in_place(mutant)
            for item in chosen:
                _limit_cpu(LEAST_S + TIMES * baseline.seconds[item.nodeid])
                if not self._passes(item):
                    return Outcome.KILLED
            _limit_cpu(LEAST_S + TIMES * baseline.worlds_s)
            try:
                _run_worlds(worlds)
            except Exception:  # noqa: BLE001 - whatever a mutant breaks is a kill
                return Outcome.KILLED_BY_WORLD
            return Outcome.SURVIVED

        for chosen, worlds in ((likely, 0), ([], package.worlds), (others, 0)):
            usual_s = sum(baseline.seconds[item.nodeid] for item in chosen) + (baseline.worlds_s if worlds else 0.0)
            outcome = in_child(partial(run, chosen, worlds), limit_s=stretch(LEAST_S + TIMES * usual_s))
            if outcome is not Outcome.SURVIVED:
                return outcome, len(likely)
        return Outcome.SURVIVED, len(likely)

    def _passes(self, item: pytest.Item) -> bool:
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self._failed

    def _put_in_place(self, mutant: Mutant) -> None:
        """Give every function that was made from the mutated one the new code, and forget what it computed before."""
        for function in self._functions[str(mutant.path), mutant.function.name, mutant.function.first_line]:
            function.__code__ = mutant.code
        for cached in self._caches:
            cached.cache_clear()


def _limit_cpu(seconds: float) -> None:
    """Let this process be killed if it takes more CPU time than this from now on, however busy the machine is."""
    limit_s = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))


def _run_worlds(count: int) -> None:
    if count:
        from tests.simulation.world import World

        for seed in range(count):
            World(seed).run()


def in_child(work: Callable[[], Any], *, limit_s: float) -> Any:
    """Return what ``work`` returns in a forked process; if that dies, KILLED, and if it takes too long, TIMED_OUT.

    Nothing that it starts is left behind, whatever ends the wait.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(writer)
    received, result, until_s = b"", Outcome.TIMED_OUT, time.monotonic() + limit_s
    try:
        while select.select([reader], [], [], max(0.0, until_s - time.monotonic()))[0]:
            if not (piece := os.read(reader, 1 << 16)):
                result = pickle.loads(received) if received else Outcome.KILLED
                break
            received += piece
    finally:
        os.close(reader)
        # What it started is in its group, which may not be there yet.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return Outcome.TIMED_OUT if os.waitstatus_to_exitcode(status) == -signal.SIGXCPU else result


def stale_explanations() -> list[MutantKey]:
    """Return the entries of tests/mutants.toml whose code is gone."""
    texts = {key: ROOT / key.file for key in explained(EXPLAINED.read_text())}
    return [key for key, path in texts.items() if is_stale(key, path.read_text() if path.exists() else None)]


def main() -> int:
    """Run what the command line asks for; 0 if no mutant survived without an explanation."""
    parser = argparse.ArgumentParser(description="Change the code, and see whether a test notices.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(PACKAGES)}; all by default")
    parser.add_argument("--mutants", type=int, default=40, help="how many for each package (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (%(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.packages) - set(PACKAGES):
        parser.error(f"no package {', '.join(unknown)}; there are {', '.join(PACKAGES)}")
    if stale := stale_explanations():
        parser.error("tests/mutants.toml explains code that is gone:\n" + "\n".join(map(str, stale)))
    packages = arguments.packages or list(PACKAGES)
    if missing := sorted(part for name in packages for part in PACKAGES[name].parts if PARTS[part].missing()):
        parser.error(f'their tests need more: make services PARTS="{" ".join(missing)}"')
    os.chdir(ROOT)
    console = Console()
    mutator = Mutator(packages, count=arguments.mutants, seed=arguments.seed, console=console)
    options = ["-qq", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow"]
    code = pytest.main([*options, *(PACKAGES[name].tests for name in packages)], plugins=[mutator])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    if mutator.unexplained:
        console.print(
            f"{mutator.unexplained} survived: test what each breaks, or explain it in {EXPLAINED.relative_to(ROOT)}"
        )
    return 1 if mutator.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
