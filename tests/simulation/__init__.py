"""A seeded world with virtual time, in which everything can fail, and what must hold in it after every event."""
