"""Strata's log in a worker: a program that logs by itself is left alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from strata.config import load_settings
from strata.run.logs import configure_logging


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Strata's logger at the level ERROR; its level is put back."""
    logger = logging.getLogger("strata")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield logger
    logger.setLevel(before)


@pytest.mark.parametrize(("level", "expected"), [("debug", logging.DEBUG), (None, logging.ERROR)])
def test_a_program_that_logs_by_itself_keeps_its_handlers_and_gets_the_level_that_was_asked_for(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, level: str | None, expected: int
) -> None:
    assert logging.getLogger().hasHandlers(), "pytest's own"
    if level is not None:
        monkeypatch.setenv("STRATA_LOG_LEVEL", level)
    configure_logging(load_settings())
    assert logger.level == expected
    assert logger.handlers == []
    assert logger.propagate
