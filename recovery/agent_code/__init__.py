"""What an agent's own code says: lost variables, races, values changed in place."""
