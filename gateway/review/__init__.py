"""The human queue without HTTP: what reviewers do, callable from the API, the console and the sweeper alike."""
