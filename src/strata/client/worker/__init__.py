"""The worker's half of the protocol: a pure state machine and its parts; the simulator drives the same code.

No socket, thread, clock or chance is used here; what must be done comes out as actions, and a driver carries them out.
"""
