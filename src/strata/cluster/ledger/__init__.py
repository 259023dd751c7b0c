"""The data of a job: which samples of each epoch the model has seen, and which worker reads which of the rest.

Nothing here grows with the number of samples, and what grows with the number of shards can be worked out in a thread.
"""
