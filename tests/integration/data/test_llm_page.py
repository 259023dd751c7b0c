"""docs/llm.md runs as it is written: every block, from top to bottom, in an empty directory."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.pace import stretch

PAGE = Path(__file__).parents[3] / "docs" / "llm.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.part("torch")
@pytest.mark.timeout(300)
def test_the_page_runs_as_written(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 8
    environment = {**os.environ, "DATA_CACHE_PATH": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    strata = shlex.quote(str(Path(sys.executable).with_name("strata")))
    script = ["import subprocess"]
    for kind, text in blocks:
        if kind == "python":
            script.append(text)
            continue
        for line in text.splitlines():
            assert line.startswith("$ strata "), line
            command = strata + line.removeprefix("$ strata")
            script.append(f"subprocess.run({command!r}, shell=True, check=True)")
    (tmp_path / "page.py").write_text("\n".join(script))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=stretch(280)
    )
    assert done.returncode == 0, done.stderr
    assert "tokens of 2000 documents" in done.stdout
    first, last = re.search(r"loss ([\d.]+) -> ([\d.]+)", done.stdout).groups()
    assert float(last) < float(first)
