"""Chaos: a running service whose processes are killed at random, and a ledger beside it that knows what must come of it."""
