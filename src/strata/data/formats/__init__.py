"""One file per format: how its files are scanned once, and how any range of rows is read from them.

A format sees one file at a time, as random access to bytes; where those bytes lie is not its concern.
"""

import strata.data.arrow_library  # noqa: F401 - before any of its modules
