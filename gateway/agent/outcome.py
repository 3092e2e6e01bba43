"""How a piece of writing can end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.item import Usage


@dataclass(frozen=True, slots=True)
class Written:
    """The copy is there."""

    result: Mapping[str, Any]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """No copy could be written; `detail` is safe to show."""

    code: str
    detail: str
    retryable: bool
    usage: Usage


@dataclass(frozen=True, slots=True)
class Escalated:
    """A person has to decide; the run stands still and can go on."""

    reason: str
    tool: str | None
    packet: Mapping[str, Any]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Halted:
    """The run stands still, and the caller decides."""

    reason: str
    packet: Mapping[str, Any]
    usage: Usage


WritingOutcome = Written | Failed | Escalated | Halted
