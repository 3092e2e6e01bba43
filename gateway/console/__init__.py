"""The reviewers' pages: rendered on the server, usable without a script, live and quick with one."""
