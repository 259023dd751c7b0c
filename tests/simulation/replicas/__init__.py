"""Worlds of several coordinators on one etcd: who leads, what is acknowledged, and that it stays one history.

The election, the journal's transactions, the log reader, the cluster and the worker's protocol are the shipped ones;
etcd, the network and time are models.
"""
