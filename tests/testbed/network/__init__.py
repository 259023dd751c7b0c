"""Raw connections, and a proxy that swallows what goes through it."""
