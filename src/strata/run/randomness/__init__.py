"""Random numbers of a run: a process's generators, what a checkpoint keeps of them, seeds for steps and blocks."""
