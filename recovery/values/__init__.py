"""Python values to bytes and back, and as people read them. No code comes from data."""
