"""One job, faults one after the other, and what must hold at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Protocol, Self

from strata.client.unary import ask_audit
from strata.demo.samples import make_dataset
from tests.chaos.logs import Line, Pause, count_lives, find_silences, read_lines
from tests.chaos.programs import PROGRAMS
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

ROWS, NPROC = 480, 3
FAULTS = ("hang", "kill", "freeze", "doze", "sigterm", "launcher_death", "preempt", "coordinator_death")
RECOVERED_S = 120.0


class Service(Protocol):
    """One coordinator or several, which a job is given to."""

    url: str

    def serving(self) -> AbstractContextManager[object]:
        """Run it until the block ends."""
        ...


class Chaos:
    """A job of a few workers under ``strata run``, with a coordinator of its own. Leaving the block ends all of it.

    ``prefix`` is what the launcher's command line begins with, to run it and its workers in a namespace.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kind: str,
        epochs: int,
        seed: int,
        watchdog_s: float,
        nproc: int = NPROC,
        coordinator: Service | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.kind = kind
        self.epochs = epochs
        self.nproc = nproc
        self._prefix = prefix
        self.chance = random.Random(seed)
        self._watchdog_s = watchdog_s
        self.home = Path(os.environ["JOBS_PATH"]) / "chaos"
        self.coordinator: Service = coordinator or CoordinatorProcess(folder, "--lease", "4", "--grace", "1")
        self.pauses: list[Pause] = []
        self.targets: list[int] = []
        self.restarts_of_all = 0
        self.hung: list[int] = []
        self._stack = ExitStack()
        self._serving = ExitStack()
        self._launcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        make_dataset(self.folder / "data", ROWS)
        (self.folder / "train.py").write_text(PROGRAMS[self.kind])
        (self.folder / "slow").touch()
        self._serving.enter_context(self.coordinator.serving())
        self._launch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._launcher is not None:
            self._launcher.kill()
            self._launcher.wait()
        for rank in range(self.nproc):
            with suppress(ProcessLookupError, FileNotFoundError, ValueError):
                os.kill(self._pid(rank), signal.SIGKILL)
        self._serving.close()
        self._stack.close()

    # Faults

    def do(self, fault: str) -> str:
        """Do one fault and wait until the job has gone on; return what was done."""
        rank = self.chance.randrange(self.nproc)
        before = self.last_step()
        getattr(self, f"_{fault}")(rank)
        # The first steps may be those that were done before the fault, and discarded.
        self.wait(lambda: self.last_step() > before + 6 or self.is_over(), f"the job goes on after {fault}")
        return f"{fault} of rank {rank} after step {before}"

    def _hang(self, rank: int) -> None:
        self.hung.append(rank)
        self.targets.append(rank)
        mark = self.folder / f"hang-{rank}"
        mark.touch()
        self.wait(lambda: not mark.exists(), f"rank {rank} hangs")

    def _kill(self, rank: int) -> None:
        self.targets.append(rank)
        os.kill(self._pid(rank), signal.SIGKILL)

    def _freeze(self, rank: int) -> None:
        """Stop a worker for longer than its lease."""
        self._stop_for(rank, 7.0)

    def _doze(self, rank: int) -> None:
        """Stop a worker for less than its lease."""
        self._stop_for(rank, 1.5)

    def _stop_for(self, rank: int, seconds: float) -> None:
        pid, began_s = self._pid(rank), time.time()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self.pauses.append(Pause(rank, began_s, time.time()))

    def _sigterm(self, rank: int) -> None:
        self.targets.append(rank)
        os.kill(self._pid(rank), signal.SIGTERM)

    def _launcher_dies(self, number: int) -> None:
        assert self._launcher is not None
        self.restarts_of_all += 1
        pids = [self._pid(rank) for rank in range(self.nproc)]
        self._launcher.send_signal(number)
        self._launcher.wait(stretch(RECOVERED_S))
        self.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "no worker outlives its launcher")
        self._launch()

    def _launcher_death(self, rank: int) -> None:
        self._launcher_dies(signal.SIGKILL)

    def _preempt(self, rank: int) -> None:
        self._launcher_dies(signal.SIGTERM)

    def _coordinator_death(self, rank: int) -> None:
        self._serving.close()
        time.sleep(self.chance.uniform(0.5, 4.0))
        self._serving = ExitStack()
        self._serving.enter_context(self.coordinator.serving())

    # The end

    def finish(self, *, judges_waits: bool) -> list[str]:
        """Let the job run to its end, and return what does not hold.

        With ``judges_waits`` also the waits that no log explains: on a machine that is too busy they mean nothing.
        """
        (self.folder / "slow").unlink()
        assert self._launcher is not None
        code = self._launcher.wait(stretch(600))
        wrong = [] if code == 0 else [f"the job ended with {code}"]
        for epoch in range(self.epochs):
            audit = ask_audit(self.coordinator.url, "chaos", "d", epoch=epoch)
            if audit.missing.samples or audit.repeated.samples:
                wrong.append(f"epoch {epoch}: {audit.missing.samples} missing, {audit.repeated.samples} repeated")
        logs = read_lines(self.home)
        wrong += self._check_total([line for lines in logs.values() for line in lines])
        wrong += self._check_lives(logs)
        for lines in logs.values() if judges_waits else ():
            wrong += find_silences(lines, self.pauses)
        return wrong

    def _check_total(self, lines: list[Line]) -> list[str]:
        expected = self.epochs * sum(number * number for number in range(ROWS)) if self.kind == "numpy" else 0
        totals = {line.text for line in lines if line.text.startswith("total ")}
        return [] if totals == {f"total {expected}"} else [f"the model is {totals}, and not {expected}"]

    def _check_lives(self, logs: dict[tuple[str, int], list[Line]]) -> list[str]:
        """No process ended that nothing was done to. With DDP all end when one does, but none by its watchdog."""
        wrong = []
        for rank in range(self.nproc):
            lives = sum(count_lives(lines) for (_, each), lines in logs.items() if each == rank)
            allowed = 1 + self.restarts_of_all + self.targets.count(rank)
            if self.kind == "numpy" and lives > allowed:
                wrong.append(f"rank {rank} lived {lives} times, and something was done to it {allowed - 1} times")
        said = (self.folder / "launcher.log").read_text(errors="replace")
        ended = said.count("hung, and was ended by its watchdog")
        if self.kind == "numpy" and ended > len(self.hung):
            wrong.append(f"{ended} workers were ended by their watchdog, and {len(self.hung)} hung")
        return wrong

    # Looking

    def _launch(self) -> None:
        command = [
            *self._prefix,
            sys.executable,
            "-m",
            "strata",
            "run",
            "--coordinator",
            self.coordinator.url,
            "--job",
            "chaos",
        ]
        command += ["--nproc", str(self.nproc), "--max-restarts", "1000", "--watchdog", str(self._watchdog_s)]
        log = self._stack.enter_context((self.folder / "launcher.log").open("ab"))
        self._launcher = start(
            [*command, str(self.folder / "train.py"), str(self.folder), str(self.epochs)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        began = self.last_step()
        self.wait(lambda: self.last_step() > began + 2 or self.is_over(), "the job begins")

    def wait(self, holds: object, what: str) -> None:
        def state() -> str:
            log = self.folder / "launcher.log"
            return f"{what}\n{log.read_text(errors='replace')[-3_000:] if log.exists() else ''}"

        wait_until(holds, state, timeout_s=RECOVERED_S)

    def last_step(self) -> int:
        """Return the last step that was done since the job was last told of, over all ranks."""
        newest = max(self.home.glob("runs/*/logs/rank-*.log"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            return 0
        steps = [
            line.rpartition(" ")[2] for line in newest.read_text(errors="replace").splitlines() if " step " in line
        ]
        return int(steps[-1]) if steps and steps[-1].isdigit() else 0

    def is_over(self) -> bool:
        assert self._launcher is not None
        return self._launcher.poll() is not None

    def _pid(self, rank: int) -> int:
        return int((self.folder / f"pid-{rank}").read_text())
