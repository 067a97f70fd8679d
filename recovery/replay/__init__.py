"""The core: events in, answers out. What is recorded, to be made again, in doubt, or new."""
