"""Plugins of pytest for all tests: deadlines, signals, and how two processes share the tests."""
