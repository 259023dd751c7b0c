"""A standalone job that is over: its coordinator is gone, and its journal is in the folder of the job."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from strata.run.job_folder import JobFolder
from strata.run.launch.standalone import StandaloneCoordinator

T = TypeVar("T")


def ask_finished(folder: JobFolder, question: Callable[[str], T]) -> T:
    """Ask the coordinator of a job that is over, as it was at the end; the journal itself is not touched."""

    async def serve_and_ask() -> T:
        with tempfile.TemporaryDirectory(prefix="strata-") as copy:
            for path in folder.path.glob("journal.db*"):
                shutil.copy(path, Path(copy) / path.name)
            async with StandaloneCoordinator(Path(copy)) as coordinator:
                return await asyncio.to_thread(question, coordinator.url)

    return asyncio.run(serve_and_ask())
