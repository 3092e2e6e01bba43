"""What the outside sees: HTTP in, HTTP out, nothing decided here."""
