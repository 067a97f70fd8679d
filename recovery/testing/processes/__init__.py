"""Real processes that are really killed."""
