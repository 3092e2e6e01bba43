"""Pages of a list: how many rows the caller asks for, after which one they begin, and the cursor of the next page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.api import request_values as values
from gateway.api.problems import FieldError, invalid

T = TypeVar("T")

PARAMETERS = ("cursor", "limit")
MOST_ROWS = 200
_USUAL_ROWS = 50

Place = tuple[int, str]
"""Of a row in the order of its list: what it is sorted by, and what tells it from those that are equal in that."""


@dataclass(frozen=True, slots=True)
class PageAsked:
    """Which page of a list is asked for."""

    limit: int
    after: Place | None
    """The place after which it begins; None for the beginning of the list."""

    @property
    def enough(self) -> int:
        """How many rows to look for: one more than the page has tells whether another one follows."""
        return self.limit + 1

    def listing(
        self, name: str, found: Sequence[T], *, show: Callable[[T], Any], place: Callable[[T], Place]
    ) -> dict[str, Any]:
        """The body of the answer, of up to `enough` rows that were found: those of the page, and its `next_cursor`."""
        page = found[: self.limit]
        cursor = encode_cursor(place(page[-1])) if len(found) > self.limit else None
        return {name: [show(row) for row in page], "next_cursor": cursor}


def asked_in(wanted: dict[str, str], *, usual: int = _USUAL_ROWS, most: int = MOST_ROWS) -> PageAsked:
    """The page that the query asks for. Raises a 400."""
    return PageAsked(limit_in(wanted, usual=usual, most=most), decode_cursor(wanted))


def limit_in(wanted: dict[str, str], *, usual: int = _USUAL_ROWS, most: int = MOST_ROWS) -> int:
    """How many rows the query asks for at most. Raises a 400."""
    return values.integer(wanted, "limit", default=usual, least=1, most=most)


def encode_cursor(place: Place) -> str:
    """An opaque cursor."""
    return base64.urlsafe_b64encode("|".join(map(str, place)).encode()).decode().rstrip("=")


def decode_cursor(wanted: dict[str, str]) -> Place | None:
    """The place after which the next page begins. Raises a 400."""
    text = wanted.get("cursor")
    if text is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
        first, second = raw.split("|")
        return int(first[:18]), second
    except (ValueError, binascii.Error):
        raise wrong_cursor() from None


def wrong_cursor() -> Exception:
    """A 400 for a cursor that no page gave."""
    detail = "Send the `next_cursor` of the page before as it was given."
    return invalid(f"The cursor is not valid. {detail}", FieldError("cursor", "cursor", detail))
