"""``logdump stats``: what a log is made of."""
