"""The worker's side of the channel to the coordinator, with a sync and an async face.

It connects, retries and queues within bounds; what to say is decided by its callers.
"""
