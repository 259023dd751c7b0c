"""The protobuf messages of /proto, their conversions, and the one table from errors to statuses and back.

Nothing here decides, connects or waits.
"""
