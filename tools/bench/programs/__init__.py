"""Agents that are killed and resumed: ``PROGRAM crash|resume DIRECTORY STEPS [SIZE]``.

One for each package, all of them the same agent: a step is one call that returns SIZE characters
(2 KiB), and nothing grows but the record of it. ``crash`` works for so many steps and then kills
itself inside a call. ``resume`` prints the time (monotonic, the same for all processes) at which
that call is made again, and is gone at once; with status 3 when it makes a call that is recorded.
"""
