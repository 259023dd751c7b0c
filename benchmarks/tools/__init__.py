"""What several benchmarks use: a load generator for the coordinator, and how cost is measured."""
