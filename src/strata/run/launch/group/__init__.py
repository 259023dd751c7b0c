"""The workers that start together: which launchers start them, in which round, and the variables that torch reads."""
