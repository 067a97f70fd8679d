"""Keeps logs on a server: frames as in files, one conditional statement for each commit."""
