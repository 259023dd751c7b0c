"""Every code block of the pages runs as it is printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.docs.blocks import Block, find_blocks
from tests.integration.docs.contexts import CONTEXTS, Context
from tests.testbed.pace import stretch
from tests.testbed.process import run_program

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
# Its blocks build on each other: tests/integration/data/test_llm_page.py runs the page as a whole.
WHOLE_PAGES = {"llm.md"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [block for page in PAGES if page.name not in WHOLE_PAGES for block in find_blocks(page)]


def environment(folder: Path) -> dict[str, str]:
    """Let ``strata`` and ``python`` be those of this test, wherever it was installed."""
    programs = folder / "bin"
    programs.mkdir()
    for name, command in {"strata": f"{sys.executable} -m strata", "python": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def run_python(block: Block, context: Context, folder: Path) -> None:
    text = block.text
    for found, instead in context.replaced.items():
        text = text.replace(found, instead)
    if context.is_awaited:
        body = textwrap.indent(text + "\n" + context.postlude, "    ")
        text, postlude = f"async def main():\n{body}", "import asyncio\nasyncio.run(main())\n"
    else:
        postlude = context.postlude
    # Loaders may start processes, which import the script.
    text = f"{context.prelude}\n{text}\n{postlude}"
    guarded = "if __name__ == '__main__':\n" + textwrap.indent(text, "    ") if context.part else text
    (folder / "block.py").write_text(guarded)
    launcher = ["-m", "strata", "run", "--standalone", "--nproc", str(context.workers)] if context.workers else []
    done = run_program(
        [sys.executable, *launcher, "block.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=stretch(200),
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def run_console(block: Block, context: Context, folder: Path) -> None:
    commands = block.commands()
    assert commands, f"{block} has no line that begins with $"
    environ = environment(folder)
    for number, command in enumerate(commands, start=1):
        for found, instead in context.replaced.items():
            command = command.replace(found, instead)
        if "options-only" in block.directives:
            words = shlex.split(command.replace("\\\n", " "), comments=True)
            command = shlex.join([*(word for word in words if "..." not in word), "--help"])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            capture_output=True,
            text=True,
            env=environ,
            timeout=stretch(200),
            check=False,
        )
        expected = int(block.directives.get("exit", "0")) if number == len(commands) else 0
        assert done.returncode == expected, f"{block}: {command}\n{done.stdout}\n{done.stderr}"


def context_of(block: Block) -> Context:
    return CONTEXTS[block.directives.get("context", "none")]


def parameter_of(block: Block) -> object:
    part = context_of(block).part
    return pytest.param(block, id=str(block), marks=[pytest.mark.part(part)] if part else [])


def test_a_block_that_cannot_run_says_why() -> None:
    assert [block for block in BLOCKS if block.directives.get("skip") == ""] == []


@pytest.mark.parametrize("block", [parameter_of(block) for block in BLOCKS if "skip" not in block.directives])
def test_the_block_runs(block: Block, tmp_path: Path) -> None:
    context = context_of(block)
    context.prepare(tmp_path)
    if block.language == "python":
        run_python(block, context, tmp_path)
    else:
        run_console(block, context, tmp_path)
