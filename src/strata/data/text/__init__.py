"""From text to what a language model trains on: tokens, packed sequences, padded batches, Megatron's files.

Which documents come, and in which order, is decided in ``data.loading``; what is carried over is part of the position.
"""

import strata.data.arrow_library  # noqa: F401 - before any of its modules
