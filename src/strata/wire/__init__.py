"""The protobuf messages of /proto, their conversions, and the one table from errors to statuses and back.

Nothing here decides, connects or waits.
"""

# Grows when a worker and a coordinator of different versions would misunderstand each other; most changes only add.
PROTOCOL = 1
