"""The files of a dataset as one sequence of rows: the index of their blocks, and columns read from them.

Who reads which rows, and in which order, is decided in ``data.loading``.
"""

import strata.data.arrow_library  # noqa: F401 - before any of its modules
