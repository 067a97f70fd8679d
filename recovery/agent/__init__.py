"""What users hold: agents, stores, handles, runs. The drivers; whose turn it is; group commit."""
