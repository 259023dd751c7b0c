"""The demonstration: a small run that is killed and rescaled in front of your eyes, and proofs that it did not matter.

It needs NumPy and nothing heavier. It uses Strata only as any training script can.
"""
