"""Bridges to other frameworks: torch (DCP, StatefulDataLoader, torchrun), JAX, Lightning, Transformers.

Each bridge fits a foreign interface to Strata's own; no logic of Strata lives here, and no bridge imports
another.
"""
