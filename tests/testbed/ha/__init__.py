"""Etcd and coordinators with replicas, for tests that kill them."""
