"""`python -m gateway` is `sluicegate`."""

from gateway.cli import main

main()
