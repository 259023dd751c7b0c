"""Rewriting a dataset into files that load fast, in order or shuffled; the new files appear when all are complete."""

import strata.data.arrow_library  # noqa: F401 - before any of its modules
