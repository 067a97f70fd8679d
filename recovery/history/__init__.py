"""A run read back from its log; its checkpoints written, restored, kept or dropped."""
