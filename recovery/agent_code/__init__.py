"""Examines an agent's own code: lost variables, races, values changed in place."""
