"""Tar archives of samples in the WebDataset convention: the archive, its members, and the rows they make."""
