"""How the coordinator fails: what an error of journal, disk or etcd means, and the end of a process that cannot go on.

Nothing here knows what a task or a journal does.
"""
