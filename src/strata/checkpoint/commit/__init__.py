"""How parts become one committed checkpoint, alone or together with the other workers of a job."""
