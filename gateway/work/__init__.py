"""How work reaches a worker: rows are the queue, signals only shorten the wait."""
