"""Deaths that are simulated in this process, on a simulated disk."""
