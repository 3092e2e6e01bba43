"""What callers may do to an item that is there already: try again, answer a question, replace it."""
