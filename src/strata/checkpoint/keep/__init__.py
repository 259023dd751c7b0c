"""Checkpoints after their commit: listing, retention, and inspection without a restore."""
