"""What the simulated workers run: the training script, and a program that counts beside it."""
