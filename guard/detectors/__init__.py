"""One detector a file: a memory that is folded over the trace, and pure functions that find.

Detectors never act. They return a `Finding` with a count; the ladder in the policy says what that count is worth.
"""
