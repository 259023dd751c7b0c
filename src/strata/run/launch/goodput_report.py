"""Where the time of a job went, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strata.run.launch.job_progress import format_duration

WORDS = {
    "compute": "training, in steps that were kept",
    "data": "waiting for the next batch",
    "save": "held up by saves",
    "restore": "restoring state",
    "wait": "waiting for other workers",
    "repeated": "steps that were lost or done again",
    "other": "starting up, and everything else",
    "down": "no worker at all",
}
_BAR = 30


def describe_goodput(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for people."""
    if answer["goodput"] is None:
        yield f"job {answer['job_id']}: no worker has reported yet"
        return
    yield (
        f"job {answer['job_id']}: goodput {answer['goodput']:.1%} of {format_duration(answer['wall_s'])}"
        + (f", {answer['recent_goodput']:.1%} lately" if answer["recent_goodput"] is not None else "")
    )
    for part in answer["parts"]:
        bar, what = "#" * round(_BAR * part["share"]), WORDS.get(part["part"], part["part"])
        yield f"  {part['share']:6.1%} {part['seconds']:10.1f} s  {bar:<{_BAR}}  {what}"
    total_s, wall_s = sum(part["seconds"] for part in answer["parts"]), answer["wall_s"]
    yield f"  {total_s / max(wall_s, 1e-9):6.1%} {total_s:10.1f} s  in all, of {wall_s:.1f} s of wall time"
    risk = "" if answer["steps_at_risk"] is None else f", {answer['steps_at_risk']} at risk"
    yield f"steps: {answer['steps']} kept, {answer['repeated_steps']} done again{risk}"
    between = "" if answer["mtbf_s"] is None else f", one in {format_duration(answer['mtbf_s'])}"
    yield f"failures: {answer['failures']}{between}"
    for straggler in answer["stragglers"]:
        yield (
            f"slow: rank {straggler['rank']} ({straggler['worker_id']}) takes {straggler['ratio']:.1f} times as long "
            f"as the others for {straggler['steps']} steps: {straggler['step_s']:.3g} s instead of "
            f"{straggler['median_s']:.3g} s, in {straggler['cause']}"
        )
