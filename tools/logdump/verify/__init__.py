"""``logdump verify``: check everything, and say what it means for a recovery."""
