"""Webhooks: who is told of what, how each attempt is signed and sent, and where it may go."""
