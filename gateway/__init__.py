"""The service around the edge rules and the guard: HTTP, database, queue, blobs, models, command line."""

__version__ = "0.1.0"
