"""What is printed at the end of the demonstration, as plain lines."""

from __future__ import annotations

from strata.demo.director import Scene
from strata.demo.proofs import Proof
from strata.run.launch.goodput_report import describe_goodput


def describe(scene: Scene, proofs: list[Proof], *, took_s: float) -> list[str]:
    """Return the summary: what was done to the run, what saving cost, and what was proved."""
    lines = ["What was done to the run, and after how long all trained on"]
    lines += [
        f"  {act.what:<34} at step {act.at_step:>4}   "
        + (f"{act.recovered_s:5.1f} s" if act.recovered_s is not None else "not recovered")
        for act in scene.acts
    ]
    lines.append(f"  {scene.repeated_steps} of {scene.total_steps} steps were done twice, from the last checkpoint on")
    lines += ["", "Checkpoints, written while training went on"]
    complete = {step: rows for step, rows in scene.saves.items() if rows}
    size_bytes = sum(size for rows in complete.values() for size, _, _ in rows)
    busy_s = sum(max(took_s for _, took_s, _ in rows) for rows in complete.values())
    blocked_s = [blocked_s for rows in complete.values() for _, _, blocked_s in rows]
    lines.append(
        f"  {len(complete)} saves, {size_bytes / 1e6:.1f} MB, {size_bytes / max(busy_s, 1e-9) / 1e6:.1f} MB/s until "
        f"committed; training was held up for {1e3 * sum(blocked_s) / max(1, len(blocked_s)):.1f} ms by each"
    )
    lines += ["", "Where the time went", *(f"  {line}" for line in describe_goodput(scene.goodput))]
    lines += ["", "Proofs"]
    lines += [f"  {'ok    ' if proof.holds else 'FAILED'} {proof.claim} ({proof.evidence})" for proof in proofs]
    lines += ["", f"{took_s:.0f} s in all"]
    return lines
