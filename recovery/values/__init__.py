"""Converts Python values to bytes and back, and renders them. No code comes from data."""
