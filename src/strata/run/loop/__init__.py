"""The training loop: steps, their data, when to save, when to stop."""
