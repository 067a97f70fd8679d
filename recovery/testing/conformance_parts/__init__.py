"""The tests of ``recovery.testing.store_conformance``: of logs, of runs, of servers."""
