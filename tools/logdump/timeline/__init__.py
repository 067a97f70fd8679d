"""``logdump timeline``: a run as one HTML file."""
