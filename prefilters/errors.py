"""What can go wrong while a file is measured, as values with a stable code."""

from __future__ import annotations

from enum import StrEnum


class DecodeStatus(StrEnum):
    """How far a decoder came with a file; the fact `decode.status`."""

    OK = "ok"
    EMPTY = "empty"
    CORRUPT = "corrupt"
    TRUNCATED = "truncated"
    ENCRYPTED = "encrypted"
    NO_AUDIO = "no_audio"
    TIMEOUT = "timeout"
    RESOURCE_LIMIT = "resource_limit"


class ProbeError(Exception):
    """A file could not be measured. The screening turns it into the fact `decode.status`, so that a rule judges it.

    The message is for logs only and never reaches a caller.
    """

    def __init__(self, status: DecodeStatus, message: str = "") -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.status.value}: {self.message}" if self.message else self.status.value


class RuleSetInvalid(Exception):
    """A rule file cannot be used. `problems` says what is wrong, each line naming file, line and rule."""

    code = "rule_invalid"
    retryable = False

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(self.problems)
