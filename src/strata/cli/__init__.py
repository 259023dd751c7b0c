"""The ``strata`` command: arguments in, printing out.

What a command does lives in the packages below; here it is only asked for and shown.
"""
