"""The HTTP API, in a thread of its own: what operators, the dashboard and Prometheus read of the coordinator.

It changes nothing and decides nothing. It sees immutable copies of what is durable, and never the cluster itself.
"""
