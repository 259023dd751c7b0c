"""Benchmarks of the coordinator as a service: its transports, replicas, security, fairness, traces and pages."""
