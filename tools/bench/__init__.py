"""Benchmarks: ``python -m tools.bench [NAME ...]``.

Absolute times of a durable write say more about the machine than about the code: what a flush
costs differs by orders of magnitude, and a shared machine changes its speed from minute to minute.
So whatever is measured is measured in turns with its yardsticks (A B A B), each in a process of
its own, and the ratio of the two is what counts.

A benchmark is a module with ``TITLE``, ``ABOUT``, ``UNIT`` (see _result.Unit), ``CHART``,
``run(bench)``, which gives Results, and ``aims(results)``. What it measures are subjects (see
_worker), ours and those of other packages, which have an environment of their own (see _peers).
"""
