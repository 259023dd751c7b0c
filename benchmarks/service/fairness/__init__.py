"""How much one tenant feels of what another one does."""
