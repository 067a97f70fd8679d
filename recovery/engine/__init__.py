"""One execution of a run: what it knows, writes and stops for."""
