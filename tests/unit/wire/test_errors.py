"""The client raises the error that the coordinator raised, and other languages get a fitting status."""

from __future__ import annotations

from pathlib import PurePosixPath

import grpc
import pytest

from strata import errors
from strata.errors import BadCommandError, StrataError, fields_of
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire.errors import from_error, status_of, to_error
from tests.unit.test_errors import SAMPLES


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_crosses_the_wire_with_message_and_fields(error: StrataError) -> None:
    again = from_error(pb.Error.FromString(to_error(error).SerializeToString()))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert fields_of(again) == fields_of(error)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_has_a_status_that_is_not_internal(error: StrataError) -> None:
    assert status_of(error) not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.OK)


def test_foreign_classes_are_never_made() -> None:
    for kind in ("SystemExit", "revive", "Iterable", "NoSuchError", ""):
        error = from_error(pb.Error(kind=kind, message="text", fields='{"a": 1}'))
        assert type(error) is StrataError
        assert "text" in str(error)


def test_notes_travel_and_fields_that_are_not_declared_do_not() -> None:
    error = BadCommandError("no")
    error.add_note("seen at the third attempt")
    message = to_error(error)
    message.fields = message.fields.replace("{", '{"args": ["other"], "recovery": "retry", ', 1)
    again = from_error(message)
    assert again.__notes__ == ["seen at the third attempt"]
    assert vars(again).keys() == {"problem", "__notes__"}
    assert str(again) == str(error)


def test_a_field_that_json_does_not_know_crosses_the_wire_as_its_text() -> None:
    again = from_error(to_error(BadCommandError(PurePosixPath("a/b"))))
    assert fields_of(again) == {"problem": "a/b"}


def test_a_bug_is_internal_and_a_bad_argument_is_not() -> None:
    assert status_of(KeyError("x")) is grpc.StatusCode.INTERNAL
    assert status_of(ValueError("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert status_of(errors.StaleGenerationError("w", sent=1, current=2)) is grpc.StatusCode.ABORTED
