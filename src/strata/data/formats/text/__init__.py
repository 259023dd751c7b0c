"""Formats whose files are lines of text: CSV and JSON lines, and where such files can be cut."""
