"""What must hold in a world of one coordinator: members, barriers, checkpoints, data and keys."""
