"""The database: the item's row is the queue, and every change is conditional on the state and the fence."""
