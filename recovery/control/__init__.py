"""What others do to a run from any process: signals, decisions, cancel, resolve."""
