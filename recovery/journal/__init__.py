"""Defines what a run writes: its events, their bytes, the identity of a call, links of runs."""
