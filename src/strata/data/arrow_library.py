"""Rooms that read rows import this first: where pyarrow is missing, it says what to install.

The rest of Strata does without it, checkpoints and ``strata.join`` too, and pyarrow is half of what is installed.
"""

from importlib.util import find_spec

from strata.errors import MissingExtraError

if find_spec("pyarrow") is None:
    raise MissingExtraError("data", needed_for="reading datasets")
