"""``strata version``: what is installed, for a bug report."""

from __future__ import annotations

import platform
import sys

from strata import __version__
from strata.cli.output import AsJson, print_json


def show_version(*, as_json: AsJson = False) -> None:
    """Print the version of Strata, of Python and of the platform."""
    python = platform.python_version()
    if as_json:
        print_json({"strata": __version__, "python": python, "platform": platform.platform()})
    else:
        sys.stdout.write(f"strata {__version__} (Python {python}, {platform.platform()})\n")
