"""What a script reports of its steps never ends it: numbers of any library count, and the rest is left out."""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from strata.cluster import validation
from strata.cluster.commands import Heartbeat
from strata.reported_numbers import MAX_NUMBERS, ReportedNumbers

REPORTED: dict[str, Any] = {
    "loss": math.nan,
    "norm": np.float32(0.5),
    "lr": np.array([[0.25]]),
    "text": "2.5",
    "half": Fraction(1, 2),
    "count": 3,
    "done": True,
    "none": None,
    "many": np.ones(4),
    "huge": 10**400,
    "word": "fast",
    "when": np.datetime64("2026-01-01", "ns"),
    "list": [0.5],
    "phase": 1j,
}


def test_numbers_are_kept_and_the_rest_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    numbers = ReportedNumbers()
    with caplog.at_level(logging.WARNING):
        found = [numbers.clean(REPORTED) for _ in range(2)][-1]
    expected = {"loss": math.nan, "norm": 0.5, "lr": 0.25, "text": 2.5, "half": 0.5, "count": 3.0, "done": 1.0}
    assert repr(found) == repr(expected)
    names = ("none", "many", "huge", "word", "when", "list", "phase")
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == len(names)
    assert all(f"the metric {name!r} is left out: " in line for name, line in zip(names, warned, strict=True))
    assert "of type ndarray of shape (4,)" in caplog.text


@pytest.mark.part("torch")
def test_a_tensor_with_one_element_is_a_number() -> None:
    import torch

    reported = {"loss": torch.tensor(0.5, requires_grad=True), "many": torch.ones(3), "none": torch.ones(0)}
    assert ReportedNumbers().clean(reported) == {"loss": 0.5}


def test_whatever_is_reported_the_coordinator_accepts_what_is_sent() -> None:
    many = {f"metric {number}": 1.0 for number in range(100)}
    for names in (many, {"": 1.0, "x" * 65: 1.0, "a\nb": 1.0, "\ud800": 1.0, "good": 1.0}, REPORTED):
        sent = ReportedNumbers().fit(names)
        assert 0 < len(sent) <= MAX_NUMBERS
        validation.check_fields(Heartbeat(job_id="j", worker_id="w", incarnation="1-a", resources=sent))
