"""One Storage protocol and its backends: local disk, object stores, memory.

Everything that Strata keeps goes through here, and nothing here knows what it keeps.
"""
