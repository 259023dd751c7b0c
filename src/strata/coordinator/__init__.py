"""The composition root of the service: gRPC, channel, HTTP and journal around the cluster's state machine.

It translates and persists; every decision is made in the cluster package, and no storage credential
ever comes here.
"""
