"""The files of a dataset, on a disk or in a store: listed, opened, read at random, cached.

What a row is, and how a file is laid out inside, is not known here.
"""

import strata.data.arrow_library  # noqa: F401 - before any of its modules
