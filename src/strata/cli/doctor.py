"""``strata doctor``: whether this machine can run a job well, and what to mend if not."""

from __future__ import annotations

import asyncio
import importlib.metadata
import mmap
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from strata.background import STARTS_THREADS_AT_EXIT
from strata.cli.output import AsJson, print_json
from strata.cli.watch.status import DEFAULT_URL
from strata.config import Settings, load_settings
from strata.errors import ConfigError, StrataError

PROBE_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20
SLOW_DISK_MB_S = 100.0
CLOCK_WARN_S = 1.0
PORTS = {50_051: "gRPC", 50_052: "channel", 8080: "HTTP"}
Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, and what to do about it."""

    name: str
    level: Level
    found: str
    mend: str = ""


def check_machine(
    *,
    path: Annotated[
        Path | None,
        typer.Option("--path", help="The directory to measure.", show_default="LOCAL_STORAGE_PATH"),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", help="Where the coordinator is.", show_default="COORDINATOR_URL")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check ports, disk, clock, libraries and storage here, and print what to fix. Exits with 1 on a problem."""
    settings = load_settings(coordinator_url=coordinator, local_storage_path=path)
    folder = settings.local_storage_path.expanduser()
    checks: list[Callable[[], list[Finding]]] = [
        check_python,
        check_torch,
        lambda: check_ports(PORTS),
        lambda: check_disk(folder),
        lambda: check_storage(settings),
        lambda: check_coordinator(settings.coordinator_url),
    ]
    findings = [finding for check in checks for finding in check()]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            sys.stdout.write(f"{finding.level:8} {finding.name:14} {finding.found}\n")
            if finding.mend:
                sys.stdout.write(f"{'':23} -> {finding.mend}\n")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def check_python() -> list[Finding]:
    """Look at Python and the machine."""
    found = f"{'.'.join(map(str, sys.version_info[:3]))}, {os.cpu_count()} processors"
    if STARTS_THREADS_AT_EXIT:
        return [Finding("python", "ok", found)]
    mend = "use 3.12.3 or newer: this one cannot finish a save that is pending when the program ends"
    return [Finding("python", "warning", found, mend)]


def check_torch() -> list[Finding]:
    """Look at torch and NCCL, without which nothing but the example of DDP is missing."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return [Finding("torch", "ok", "not installed; it is needed for DDP and FSDP only")]
    import torch

    if not torch.cuda.is_available():
        return [Finding("torch", "ok", f"{version}, no GPU; gloo works, NCCL does not")]
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return [Finding("torch", "ok", f"{version}, {torch.cuda.device_count()} GPUs, NCCL {nccl}")]


def check_ports(ports: dict[int, str]) -> list[Finding]:
    """Look whether a coordinator could listen at its usual ports here."""
    findings = []
    for port, use in ports.items():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                mend = f"a coordinator runs here already, or give it another port: strata coordinator --help ({use})"
                findings.append(Finding(f"port {port}", "warning", f"{use}: {error.strerror}", mend))
            else:
                findings.append(Finding(f"port {port}", "ok", f"{use}: free"))
    return findings


def check_disk(folder: Path) -> list[Finding]:
    """Measure a durable write of 64 MiB where local checkpoints go, and whether it may bypass the page cache."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        return [Finding("disk", "problem", f"{there} may not be written", "choose another LOCAL_STORAGE_PATH")]
    stat = os.statvfs(there)
    free_gb = stat.f_bavail * stat.f_frsize / 1e9
    findings = []
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".strata-doctor-") as probe:
            direct_s = _write(Path(probe) / "direct", getattr(os, "O_DIRECT", 0))
            buffered_s = _write(Path(probe) / "buffered", 0)
    except OSError as error:
        return [Finding("disk", "problem", f"{there}: {error.strerror}", "free some space, or choose another path")]
    if direct_s is None:
        mend = "checkpoints are written through the page cache, which is slower for large ones"
        findings.append(Finding("O_DIRECT", "warning", f"refused by the file system of {there}", mend))
    else:
        findings.append(Finding("O_DIRECT", "ok", f"{PROBE_BYTES / direct_s / 1e6:,.0f} MB/s durable"))
    assert buffered_s is not None
    speed = PROBE_BYTES / min(buffered_s, direct_s or buffered_s) / 1e6
    is_slow = speed < SLOW_DISK_MB_S
    mend = "checkpoints will take long; use a local NVMe disk or an object store" if is_slow else ""
    text = f"{there}: {speed:,.0f} MB/s durable, {free_gb:,.0f} GB free"
    findings.append(Finding("disk", "warning" if is_slow else "ok", text, mend))
    return findings


def _write(path: Path, flag: int) -> float | None:
    """Return how long a durable write takes; None if the flag is refused."""
    block = mmap.mmap(-1, BLOCK_BYTES)
    block.write(os.urandom(4096) * (BLOCK_BYTES // 4096))
    try:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | flag, 0o600)
    except OSError:
        if flag:
            return None
        raise
    try:
        began_s = time.perf_counter()
        written_bytes = 0
        while written_bytes < PROBE_BYTES:
            # A disk that is nearly full takes a part of the block, and refuses the next one.
            written_bytes += os.write(file, block)
        os.fsync(file)
        return time.perf_counter() - began_s
    except OSError:
        if flag:
            return None
        raise
    finally:
        os.close(file)
        block.close()


def check_storage(settings: Settings) -> list[Finding]:
    """Look whether the store of the environment can be written, and refuses to overwrite what is to be new."""
    from strata.errors import ObjectExistsError
    from strata.storage import storage_from_env

    name = f"storage {settings.storage_backend}"

    async def probe() -> str:
        storage = storage_from_env()
        key = f"doctor-{uuid.uuid4().hex}"
        await storage.write_new(key, b"1")
        try:
            await storage.write_new(key, b"2")
        except ObjectExistsError:
            return ""
        finally:
            await storage.delete(key)
        return "it overwrites objects that are to be new"

    try:
        problem = asyncio.run(asyncio.wait_for(probe(), 60.0))
    except (StrataError, OSError, TimeoutError) as error:
        return [Finding(name, "problem", str(error) or type(error).__name__, "see docs/storage.md for its settings")]
    if problem:
        return [Finding(name, "problem", problem, "commits would not be safe: use a store with put-if-absent")]
    return [Finding(name, "ok", "can be written, and keeps put-if-absent")]


def check_coordinator(url: str | None) -> list[Finding]:
    """Look whether the coordinator answers, and how far its clock is from this one."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    if url is None:
        return [Finding("coordinator", "ok", f"none is set; --standalone needs none, else try {DEFAULT_URL}")]
    began_s = time.time()
    try:
        events = ask(url, lambda stub: list(stub.StreamEvents(pb.StreamEvents(once=True), timeout=10.0)))
    except (StrataError, ConfigError) as error:
        return [Finding("coordinator", "problem", str(error), "start it: strata coordinator; or mend COORDINATOR_URL")]
    took_s = time.time() - began_s
    ahead_s = max((event.time_s for event in events), default=0.0) - time.time()
    if ahead_s > CLOCK_WARN_S:
        mend = "set both clocks by NTP: times in logs and events do not fit together"
        return [Finding("clock", "warning", f"the coordinator's is at least {ahead_s:.1f} s ahead of this one", mend)]
    return [Finding("coordinator", "ok", f"{url} answers in {took_s * 1e3:.0f} ms")]
