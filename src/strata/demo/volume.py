"""The demonstration on a volume that containers share: training that any number of them join, and its proofs.

    python -m strata.demo.volume train FOLDER EPOCHS PACE_S [CHECKPOINTS]
        one worker; strata run starts it in each container
    python -m strata.demo.volume prove FOLDER EPOCHS [CHECKPOINTS]
        exits with 1 if a proof fails, with 2 if it trains still

FOLDER is on the volume; CHECKPOINTS may be elsewhere, such as s3://bucket/demo. COORDINATOR_URL and JOB_ID say which
run it is, as for any training program.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path

from strata.checkpoint import CheckpointManager
from strata.client.unary import ask_audit
from strata.config import load_settings
from strata.demo.model import BATCH_SIZE
from strata.demo.proofs import prove
from strata.demo.samples import make_dataset
from strata.demo.worker import DATASET, train
from strata.errors import ConfigError, ConfigProblem, CoordinatorLostError
from strata.wire._generated import coordinator_pb2 as pb

ROWS = 5_000
FAILED, TRAINS_STILL = 1, 2
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)


def main() -> int:
    """Run the command line."""
    action, folder, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if action == "train":
        make_dataset(folder / "data", ROWS)
        train(folder, epochs=epochs, pace_s=float(sys.argv[4]), is_local=False, checkpoints=_argument(5))
        return 0
    if action != "prove":
        raise SystemExit(__doc__)
    return print_proofs(folder, epochs=epochs, checkpoints=_argument(4) or folder / "checkpoints")


def _argument(at: int) -> str | None:
    return sys.argv[at] if len(sys.argv) > at else None


def print_proofs(folder: Path, *, epochs: int, checkpoints: str | Path) -> int:
    """Train the same alone and undisturbed, compare, and ask the coordinator for its audit; return the exit code."""
    settings = load_settings()
    if settings.coordinator_url is None:
        raise ConfigError([ConfigProblem("COORDINATOR_URL", "environment", None, "the address of the coordinator")])
    total = epochs * -(-ROWS // BATCH_SIZE)
    with CheckpointManager(checkpoints, job_id=settings.job_id) as manager:
        latest = manager.latest()
    if latest is None or latest.step < total:
        saved = "has no checkpoint yet" if latest is None else f"is saved up to step {latest.step} of {total}"
        sys.stderr.write(f"job {settings.job_id} {saved}: prove it when it is finished\n")
        return TRAINS_STILL
    with contextlib.redirect_stdout(io.StringIO()):
        train(folder, epochs=epochs, pace_s=0.0, is_local=True)
    found = [_audit(settings.coordinator_url, settings.job_id, epoch) for epoch in range(epochs)]
    audits = [(each.missing.samples, each.repeated.samples) for each in found]
    proofs = prove(folder, job_id=settings.job_id, epochs=epochs, num_rows=ROWS, audits=audits, checkpoints=checkpoints)
    for proof in proofs:
        sys.stdout.write(f"{'ok    ' if proof.holds else 'FAILED'} {proof.claim} ({proof.evidence})\n")
    return 0 if all(proof.holds for proof in proofs) else FAILED


def _audit(url: str, job_id: str, epoch: int) -> pb.DataAudit:
    """Ask for an audit, several times if the coordinator cannot be reached.

    Podman's name server loses lookups while containers start, and each takes up to 40 s to fail: hence a number of
    attempts, and no deadline.
    """
    for pause_s in PAUSES_S:
        try:
            return ask_audit(url, job_id, DATASET, epoch=epoch)
        except CoordinatorLostError:
            time.sleep(pause_s)
    return ask_audit(url, job_id, DATASET, epoch=epoch)


if __name__ == "__main__":
    sys.exit(main())
