"""What a checkpoint is on storage: manifest, names, part layout, element types, digests, deltas. Pure values.

Reading and writing them is done in ``checkpoint.save`` and ``checkpoint.load``.
"""
