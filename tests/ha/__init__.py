"""Faults on three coordinators, three etcd nodes and eight workers that train, and what must hold afterwards.

    make test-ha                # 200 faults; SEED and FAULTS say which and how many

``test_ha.py`` does ten of them. Coordinators and workers live in network namespaces of their own, so that they can be
cut off from each other and from etcd without a word.
"""
