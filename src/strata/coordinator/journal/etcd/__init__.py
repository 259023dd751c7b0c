"""A journal in etcd: what its keys hold, the transactions that change them, and the journal that uses both.

``records``, ``transactions`` and ``log_reader`` are pure; only ``etcd_journal`` and ``campaign`` talk to etcd.
"""
