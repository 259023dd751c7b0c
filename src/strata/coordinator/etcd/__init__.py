"""The part of etcd's v3 API that the coordinator needs: endpoints, and calls with deadlines and failover.

Nothing here knows what the keys mean.
"""
