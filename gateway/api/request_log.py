"""One line a request: what was asked by whom, how it ended and how long it took. Paths as the router knows them, no query."""

from __future__ import annotations

import structlog
from starlette.types import Scope

log = structlog.get_logger()

_SLOW_S = 1.0
_MANY_BY_NATURE = "/v1/guard/runs/"
"""Asked before and after each tool call of somebody's agent."""


def log_request(scope: Scope, status: int | None, seconds: float) -> None:
    """Say that a request ended. One that only read, or asked the guard, and went well and quickly is told at DEBUG."""
    path: str = scope["path"]
    state = scope.get("state", {})
    is_routine = scope["method"] in {"GET", "HEAD"} or path.startswith(_MANY_BY_NATURE)
    went_well = status is not None and status < 400 and seconds < _SLOW_S
    tell = log.debug if is_routine and went_well else log.info
    principal = state.get("principal")
    tell(
        "request.done",
        method=scope["method"],
        path=path[:200],
        status=status,
        ms=round(seconds * 1000, 1),
        **{
            **{name: value for name, value in scope.get("path_params", {}).items() if name.endswith("_id")},
            **({"item_id": state["item_id"]} if "item_id" in state else {}),
            **({} if principal is None else {"tenant": principal.tenant, "actor": principal.actor}),
        },
    )
