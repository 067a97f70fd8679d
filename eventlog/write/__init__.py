"""An open log: appending, flushing, recovery."""
