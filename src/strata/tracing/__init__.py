"""Traces of checkpoints, barriers and recoveries: sent by OpenTelemetry if the environment asks for them."""
