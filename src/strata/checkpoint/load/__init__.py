"""From a manifest to a restored state: find the bytes that are needed, read and check them, fill the given state."""
