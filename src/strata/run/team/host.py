"""What a worker tells of the machine that it runs on: name, GPUs and memory. Nothing is imported for it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

_GPUS = Path("/proc/driver/nvidia/gpus")


def describe_host() -> dict[str, Any]:
    """Return the fields of a registration that are about the machine."""
    return {"address": socket.gethostname()[:256], "gpu_count": count_gpus(), "memory_bytes": _memory_bytes()}


def count_gpus() -> int:
    """Return how many GPUs this process may use: what CUDA_VISIBLE_DEVICES says, or what the driver has."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip() and each.strip() != "-1"])
    try:
        return len(list(_GPUS.iterdir()))
    except OSError:
        return 0


def memory_numbers() -> dict[str, float]:
    """Return how much memory this process uses now; of GPUs only if torch has begun to use them."""
    numbers: dict[str, float] = {}
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        numbers["rss_bytes"] = float(pages * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        pass
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        numbers["gpu_memory_bytes"] = float(torch.cuda.memory_reserved())
    return numbers


def _memory_bytes() -> int:
    """Return the memory of one GPU where torch knows it, else that of the machine."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
