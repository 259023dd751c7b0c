"""From files to batches: readers per format, the index, the loader and the ledger.

Order and position come from the sharding package, bytes from the storage package.
"""
