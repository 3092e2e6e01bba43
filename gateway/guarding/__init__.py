"""The guard over HTTP: other people's agents ask before each tool call, and their runs live in the database."""
