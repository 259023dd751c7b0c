"""Where the time of each job went: taken from heartbeats, kept in bounded series, and summed up as goodput.

Nothing here is needed for a decision. It runs beside the coordinator's loop, and losing all of it loses no training.
"""
