"""What becomes of a job: the state that it is in, how it ended, and when it is forgotten.

Nothing that a command does to a job's members, checkpoints or data may be here.
"""
