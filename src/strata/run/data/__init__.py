"""The data of a run: datasets whose shards are handed out again in each generation, and their part of a checkpoint."""
