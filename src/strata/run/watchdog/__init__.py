"""No silent wait and no silent hang: named waits, the limit on a step, the rank that causes a stall, stacks on disk."""
