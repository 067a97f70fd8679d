"""Carries out each call: intent, attempts, doubt, approval, waits, child runs, undo, streams."""
