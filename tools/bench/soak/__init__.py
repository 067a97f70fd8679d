"""A soak: ``python -m tools.bench.soak [--minutes 60] [--agents 200]``.

Agents work in two processes. One lives as long as the soak, and its agents crash by exceptions;
the other is killed with SIGKILL again and again, at random instants, and resumed. Runs that have
ended make room for new ones, and all but the newest of an agent are removed. Beside the agents a
log is appended to that gets a snapshot now and then, and is cut off before it. A reader in a third
process follows all of it. At the end each side effect must have taken place exactly once, the
reader must have seen every record once and in order, and nothing may have grown with time: memory,
descriptors, threads, segments, the time that a step takes.
"""
