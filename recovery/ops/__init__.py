"""What an operator does with whole runs: fork, remove, gc."""
