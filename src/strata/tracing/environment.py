"""Whether the environment asks for traces, by the variables of OpenTelemetry's own specification."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from strata.tracing.traces import NO_TRACES, Tracing

log = logging.getLogger(__name__)

ASKING = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def open_tracing(environment: Mapping[str, str], *, service: str, attributes: Mapping[str, str]) -> Tracing:
    """Return what sends the spans of this process, or what does nothing.

    ``attributes`` say which process it is. A request for traces that cannot be met is logged and stops nothing: where
    spans go must never decide whether a model is trained.
    """
    asking = find_asking(environment)
    if asking is None:
        return NO_TRACES
    shown = f"{asking}={environment[asking]!r} asks for traces, and there will be none"
    try:
        # Imported here: it takes longer than all of the worker's own modules, and needs the extra.
        from strata.tracing.open_telemetry import UnknownExporterError, open_telemetry
    except ImportError as error:
        log.warning(
            "%s: OpenTelemetry is not installed (%s); pip install 'strata-runtime[otel]', or unset it", shown, error
        )
        return NO_TRACES
    if not has_service_name(environment):
        attributes = {"service.name": service, **attributes}
    try:
        return open_telemetry(list_exporters(environment), attributes, where=f"{asking}={environment[asking]!r}")
    except (UnknownExporterError, ValueError) as error:
        log.warning("%s: %s", shown, error)
        return NO_TRACES


def find_asking(environment: Mapping[str, str]) -> str | None:
    """Return the variable that asks for traces; None if none does, or another one forbids it."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    return next((name for name in ASKING if environment.get(name, "").strip()), None)


def list_exporters(environment: Mapping[str, str]) -> list[str]:
    """Return the exporters that are asked for, by the names under which packages register them.

    ValueError for a protocol that is none.
    """
    named = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    protocol = next(
        (
            environment[name].strip()
            for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
            if environment.get(name, "").strip()
        ),
        "grpc",
    )
    if protocol not in _PROTOCOLS:
        raise ValueError(f"the protocol {protocol!r} is not one of {', '.join(_PROTOCOLS)}")
    names = (name.strip() for name in named.split(","))
    return [_PROTOCOLS[protocol] if name == "otlp" else name for name in names if name]


def has_service_name(environment: Mapping[str, str]) -> bool:
    """Whether the user has named the service, which then is not named here."""
    pairs = environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    return bool(environment.get("OTEL_SERVICE_NAME")) or any(
        pair.partition("=")[0].strip() == "service.name" for pair in pairs
    )
