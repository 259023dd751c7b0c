"""Several coordinators on one journal: which of them leads, and how the others keep up.

What to do about a lease is decided in ``election``, which is pure; the other files hold the connections to etcd.
"""
