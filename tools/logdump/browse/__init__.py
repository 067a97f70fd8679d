"""``logdump browse``: look around on the whole terminal."""
