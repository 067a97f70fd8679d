"""Benchmarks: ``python -m tools.bench [NAME ...]``. Each measures its yardstick in the same run."""
