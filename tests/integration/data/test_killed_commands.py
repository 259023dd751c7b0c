"""Commands that write datasets are killed: their processes end with them, and the next run is right at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.testbed.pace import stretch
from tests.testbed.process import STRATA, end, run_program, start
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.full

DOCUMENTS = 10_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    words = np.array(["the", "cat", "sat", "on", "a", "mat", "and", "slept"])
    lines = [json.dumps({"text": " ".join(rng.choice(words, 30)), "id": n}) for n in range(DOCUMENTS)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    vocabulary = {word: number for number, word in enumerate(["<unk>", *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder


def command(kind: str, corpus: Path, target: Path) -> list[str | Path]:
    written = [STRATA, "data", kind, corpus / "a.jsonl", target, "--rows-per-file", "100", "--processes", "2"]
    return [*written, *(["--tokenizer", corpus / "tokenizer.json"] if kind == "tokenize" else ["--shuffle"])]


@pytest.fixture(scope="module", params=["tokenize", "prepare"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(kind: str, corpus: Path) -> dict[str, bytes]:
    """What the command writes if nothing is killed."""
    run_program(command(kind, corpus, corpus / kind), check=True, capture_output=True, timeout=stretch(60))
    return content(corpus / kind)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.startswith("part-")}


def processes_with(setting: str) -> list[int]:
    """Return the processes that were started with this in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if setting.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended
                continue
    return found


def files_below(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.rglob(pattern)) if folder.exists() else 0


MOMENTS: dict[str, Callable[[Path], Any]] = {
    "as a process starts": lambda folder: folder.exists(),
    "in a file": lambda folder: files_below(folder, "part-*"),
    "after some files": lambda folder: files_below(folder, "part-*.idx") + files_below(folder, "part-*.parquet") > 10,
}


@pytest.mark.parametrize(
    ("moment", "how"), [*((moment, signal.SIGKILL) for moment in MOMENTS), ("in a file", signal.SIGTERM)]
)
def test_a_killed_command_takes_its_processes_along_and_the_next_one_is_right(
    kind: str, moment: str, how: signal.Signals, corpus: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    environment = {**os.environ, "DATA_CACHE_PATH": str(tmp_path / "cache")}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    process = start(command(kind, corpus, tmp_path / "out"), **quiet)
    try:
        wait_until(lambda: process.poll() is not None or MOMENTS[moment](tmp_path / ".out.unfinished"), moment)
        assert process.poll() is None
        process.send_signal(how)
        assert process.wait(stretch(20)) == -how
    finally:
        end(process)
    # At once, while processes of the killed command may still be at work.
    done = run_program(
        command(kind, corpus, tmp_path / "out"), capture_output=True, text=True, env=environment, timeout=stretch(60)
    )
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "out") == undisturbed
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", "out"}
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    wait_until(lambda: not processes_with(f"DATA_CACHE_PATH={tmp_path / 'cache'}"), "the end of all processes")
