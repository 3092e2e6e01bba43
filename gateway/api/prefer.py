"""The Prefer header (RFC 7240): `wait`, `respond-async`, `handling=strict`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Preference:
    """What the caller prefers. `wait_s` is None when not stated; preferences that we do not know are ignored."""

    wait_s: float | None = None
    respond_async: bool = False
    strict: bool = False

    @property
    def applied(self) -> str | None:
        """The value of `Preference-Applied`."""
        parts = []
        if self.respond_async:
            parts.append("respond-async")
        if self.wait_s is not None:
            parts.append(f"wait={self.wait_s:g}")
        if self.strict:
            parts.append("handling=strict")
        return ", ".join(parts) or None


def parse_prefer(values: Iterable[str]) -> Preference:
    """Read all Prefer headers of a request; the first of equal names counts, a malformed one is ignored (RFC 7240 §2)."""
    seen: dict[str, str] = {}
    for header in values:
        for token in header.split(","):
            name, _, value = token.split(";")[0].partition("=")
            seen.setdefault(name.strip().lower(), value.strip().strip('"'))
    return Preference(
        wait_s=_seconds(seen.get("wait")),
        respond_async="respond-async" in seen,
        strict=seen.get("handling", "").lower() == "strict",
    )


def _seconds(value: str | None) -> float | None:
    if value is None or not value.isascii() or not value.isdigit():
        return None
    return min(float(int(value[:6])), MAX_WAIT_S)
