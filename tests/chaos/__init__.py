"""Faults on whole jobs under ``strata run``: real processes that are killed, frozen, hung and told to end.

    nice python -m tests.chaos --faults 28 --kind numpy
    nice python -m tests.chaos --faults 28 --kind ddp

``test_chaos.py`` runs a few of them; the full length is not for CI.
"""
