"""Containers for tests: an engine whose whole state is one temporary folder, and the Compose files started on it."""
