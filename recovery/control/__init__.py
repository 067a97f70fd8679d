"""Controls runs from any process: signals, decisions, cancel, resolve."""
