"""The outside world: files, locks, clock and randomness. The only system calls."""
