"""``strata ckpt``: the commands for checkpoints, and those that import and export the formats of other tools."""
