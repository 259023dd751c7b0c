"""Which worker gets which samples in which order, and where a job is in its data, as pure code on arrays.

No clock, disk, network or chance may be used here: every answer follows from its arguments alone.
"""
