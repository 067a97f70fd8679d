"""The other commands, a file each."""
