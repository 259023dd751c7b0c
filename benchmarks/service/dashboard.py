"""How fluid the dashboard is with 1,000 workers: frames while the table scrolls, and when the first paint comes.

    python -m benchmarks.service.dashboard [--workers 1000] [--seconds 5]

A real coordinator knows the workers, and their heartbeats go on while Chromium scrolls. The page must be built and
Chromium there: make services PARTS="dashboard browser".
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.integration.dashboard.browser import chromium, opened
from tests.testbed.coordinator import CoordinatorProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Scrolls down and up again, one step a frame, and returns how long each frame took, in milliseconds.
SCROLL = """async (seconds) => {
  const box = document.querySelector('[aria-label="Workers, scrollable"]');
  const frames = [];
  let last = await new Promise(requestAnimationFrame);
  const end = last + seconds * 1000;
  let step = 60;
  while (last < end) {
    if (box.scrollTop + box.clientHeight >= box.scrollHeight - 1) step = -60;
    if (box.scrollTop <= 0) step = 60;
    box.scrollTop += step;
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


class Crowd:
    """Workers that join and send heartbeats, in turn, over one connection."""

    def __init__(self, url: str, count: int) -> None:
        self._channel = grpc.insecure_channel(url)
        self._stub = stubs.CoordinatorStub(self._channel)
        self._names = [f"worker-{number:04}" for number in range(count)]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        for number, name in enumerate(self._names):
            host = f"10.0.{number // 250}.{number % 250}"
            self._stub.RegisterWorker(
                pb.RegisterWorker(worker_id=name, incarnation="1", address=host, gpu_count=8, memory_bytes=640 << 30)
            )
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        self._channel.close()

    def _beat(self) -> None:
        step = 0
        while not self._ending.is_set():
            step += 1
            for number, name in enumerate(self._names):
                if self._ending.wait(0.002):
                    return
                resources = {"step_s": 0.5 + number % 7 / 100, "samples_per_s": 64.0}
                self._stub.Heartbeat(
                    pb.Heartbeat(worker_id=name, incarnation="1", state="training", step=step, resources=resources)
                )


def scroll(page: Page, url: str, seconds: float) -> list[float]:
    """Return the times of the frames in which the table of workers scrolled."""
    page.goto(f"{url}/workers")
    page.get_by_role("row").nth(5).wait_for()
    frames: list[float] = page.evaluate(SCROLL, seconds)
    return frames


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service.dashboard", description="How fluid the dashboard is."
    )
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        coordinator = CoordinatorProcess(Path(folder), "--lease", "600", "--log-level", "error")
        with coordinator.serving(), chromium() as browser, opened(browser) as page:
            crowd = Crowd(coordinator.url, arguments.workers)
            try:
                page.goto(coordinator.http_url)
                paint_ms = page.evaluate(FIRST_PAINT)
                frames = sorted(scroll(page, coordinator.http_url, arguments.seconds))
            finally:
                crowd.end()
    middle, slow = frames[len(frames) // 2], frames[int(len(frames) * 0.99)]
    print(f"{arguments.workers} workers: first paint {paint_ms:.0f} ms")
    print(
        f"scrolling: {1_000 * len(frames) / sum(frames):.0f} frames/s, p50 {middle:.1f} ms, p99 {slow:.1f} ms a frame"
    )


if __name__ == "__main__":
    main()
