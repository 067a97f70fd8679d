"""Where runs live: one protocol, one module for each kind of store."""
