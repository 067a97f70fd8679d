"""Implements ``logdump timeline``, which writes a run as one HTML file."""
