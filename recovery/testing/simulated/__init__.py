"""Simulates deaths in this process, on a simulated disk."""
