"""Provides agents, stores, handles and runs to users; drives calls, in replay order."""
