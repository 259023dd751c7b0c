"""The core does without pyarrow, which is half of what an installation with it weighs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.pace import stretch

pytestmark = pytest.mark.full

BLOCK = "import sys; sys.modules['pyarrow'] = None; sys.modules['google_crc32c'] = None\n"
TRAINING = """
import numpy as np
import strata

of_extras = {"Mixture", "RunDataset", "open_dataset", "AzureStorage", "GCSStorage", "S3Storage"}
for name in set(strata.__all__) - of_extras:
    getattr(strata, name)

state = {"weights": np.arange(6.0)}
with strata.join(checkpoints="here", local=True, save_every="1 steps") as run:
    step = run.restore(state)
    for step in range(step + 1, step + 4):
        state["weights"] += 1
        run.step(step, loss=0.0)
        run.save(state).result()
print(step, *state["weights"])
print(*(name for name in sys.modules if name.startswith("pyarrow") and sys.modules[name] is not None))
"""
READING = """
import strata

try:
    strata.open_dataset("nothing.parquet")
except strata.StrataError as error:
    print(error)
with strata.join(checkpoints="here", local=True) as run:
    try:
        run.dataset("nothing.parquet")
    except strata.StrataError as error:
        print(error)
"""
MISSING = "reading datasets needs an optional library: pip install 'strata-runtime[data]'"


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=stretch(60),
        check=False,
    )


def test_the_core_and_checkpoints_work_without_pyarrow(tmp_path: Path) -> None:
    first = run(TRAINING, tmp_path)
    assert first.stdout.splitlines() == ["3 3.0 4.0 5.0 6.0 7.0 8.0", ""], first.stderr
    # The second process goes on from what the first one saved.
    assert run(TRAINING, tmp_path).stdout.splitlines() == ["6 6.0 7.0 8.0 9.0 10.0 11.0", ""]


def test_what_reads_rows_says_what_to_install(tmp_path: Path) -> None:
    done = run(READING, tmp_path)
    assert done.stdout.splitlines() == [MISSING, MISSING], done.stderr


def test_the_demonstration_and_the_data_commands_say_it_too(tmp_path: Path) -> None:
    for command in (["demo"], ["data", "index", "nothing.parquet"]):
        code = f"from strata.cli.app import main; sys.argv = ['strata', *{command}]; main()"
        done = run(code, tmp_path)
        assert (done.returncode, done.stderr.strip()) == (1, f"strata: error: {MISSING}"), done.stdout
