"""Benchmarks: each prints its figures beside a peer or the raw limit of the same run."""
