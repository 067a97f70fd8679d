"""Implements the other commands, one file each."""
