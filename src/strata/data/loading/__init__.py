"""From the rows that a worker is given to the batches that a training loop gets, with the exact position in them.

Nothing here knows a file format or a storage.
"""
