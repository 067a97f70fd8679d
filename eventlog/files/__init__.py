"""Makes all system calls: files, locks, clock and randomness."""
