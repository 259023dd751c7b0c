"""The workers that a worker trains with: alone in one process, or through a coordinator."""
