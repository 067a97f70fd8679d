"""Reads runs back from their logs; writes, restores, keeps and drops their checkpoints."""
