"""Checkpoints from state to storage and back: layout, manifest, staging, writer, reader, delta, retention.

The commit point is the manifest in storage, written once; a coordinator may drive it but is never the truth.
"""
