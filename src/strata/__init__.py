"""Strata: the runtime under a distributed training run.

This module holds the public names and nothing else. They are resolved on first use, so that
``import strata`` costs a few milliseconds and loads no library that a program does not touch.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
