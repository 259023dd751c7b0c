"""What a training process uses: join, the Run it gives, the launcher, and recovery after a failure.

It composes client, data and checkpoint; it speaks to the coordinator only through the client.
"""
