"""``logdump diff``: what two runs did differently."""
