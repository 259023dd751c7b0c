"""Which environments ask for traces, and what is said where they cannot be had."""

from __future__ import annotations

import logging
import sys

import pytest

from strata.tracing.environment import find_asking, has_service_name, list_exporters, open_tracing
from strata.tracing.traces import NO_TRACES

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environment", "asking"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_METRICS_EXPORTER": "otlp"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
        (ENDPOINT, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, None),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "false"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_the_standard_variables_ask_for_traces_or_forbid_them(environment: dict[str, str], asking: str | None) -> None:
    assert find_asking(environment) == asking


@pytest.mark.parametrize(
    ("environment", "exporters"),
    [
        ({}, ["otlp_proto_grpc"]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ["otlp_proto_http"]),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            ["otlp_proto_grpc"],
        ),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp_proto_grpc"]),
    ],
)
def test_the_protocol_of_traces_counts_before_that_of_everything(
    environment: dict[str, str], exporters: list[str]
) -> None:
    assert list_exporters(environment) == exporters


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b, service.name=mine"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "my.service.name=mine"}, False),
    ],
)
def test_a_service_that_the_user_named_keeps_its_name(environment: dict[str, str], named: bool) -> None:
    assert has_service_name(environment) is named


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "no installed package has an exporter 'jaeger'"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "'http/json' is not one of grpc, http/protobuf"),
    ],
)
def test_what_cannot_be_had_is_said_and_stops_nothing(
    environment: dict[str, str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_tracing(environment, service="s", attributes={}) is NO_TRACES
    assert told in caplog.text


def test_without_the_extra_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "strata.tracing.open_telemetry", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with caplog.at_level(logging.WARNING):
        assert open_tracing(ENDPOINT, service="s", attributes={}) is NO_TRACES
    assert "OTEL_EXPORTER_OTLP_ENDPOINT='http://127.0.0.1:9' asks for traces" in caplog.text
    assert "pip install 'strata-runtime[otel]'" in caplog.text
