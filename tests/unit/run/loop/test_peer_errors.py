"""An error of a collective call that only says that a peer is gone is told from an error of the script."""

from __future__ import annotations

import pytest

from strata.run.loop.steps import is_of_a_peer


class DistBackendError(RuntimeError):
    """As torch names it."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"), True),
        (RuntimeError("Read error: Connection reset by peer"), True),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), True),
        (DistBackendError("NCCL communicator was aborted on rank 0"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection closed"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_of_a_peer(error: BaseException, expected: bool) -> None:
    assert is_of_a_peer(error) is expected
