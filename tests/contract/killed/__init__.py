"""Agents as people write them, killed with SIGKILL at each record; see process.py."""
