"""``python -m strata`` is the ``strata`` command."""

from strata.cli.app import main

main()
