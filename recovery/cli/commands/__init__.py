"""Implements the commands, one file each."""
