"""Other libraries and servers that the benchmarks measure beside Strata."""
