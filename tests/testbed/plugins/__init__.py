"""Plugins of pytest for all tests: deadlines, signals, lanes, processes that share tests, and the end of the log."""
