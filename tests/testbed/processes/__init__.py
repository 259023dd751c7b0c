"""Processes that tests start: recorded for the log of a failed test, and forked from a server with Strata imported."""
