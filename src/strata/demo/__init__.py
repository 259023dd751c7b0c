"""The demonstration: a small run that is killed and rescaled, and proofs that its result is exactly the same.

It needs NumPy and pyarrow, the extra `data`, and nothing heavier. It uses Strata only as any training script can.
"""

import strata.data.arrow_library  # noqa: F401 - its dataset is Parquet
