"""Worlds of the shipped dispatcher: many senders, a disk that is slow and refuses, pauses, and time that is virtual.

The other worlds repeat step by step what the dispatcher does; here it runs itself, with its write queue, its compaction
and its turns.
"""
