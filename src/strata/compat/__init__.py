"""The first API, as scripts written for ``dtruntime`` use it. New code uses ``strata.join``.

It only translates: sharding, the client and checkpoints do the work.
"""
