"""The life of a call: attempts, doubt, approval, waits, child runs, undo, streams."""
