"""What a caller is told when the database or the store of files fails the service: 507, 503 or 410, never 500."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.api.problems import ApiProblem
from gateway.blobs import BlobStoreUnreachable, BlobUnusable
from gateway.store.engine import is_out_of_room

_ROOM_AGAIN_S, _DATABASE_AGAIN_S = 30, 5


def outage_of(error: BaseException) -> ApiProblem | None:
    """The problem that this error is to a caller; None where it is a fault of ours."""
    if isinstance(error, sa.exc.DBAPIError) and is_out_of_room(error):
        detail = "The database has no room left or takes no changes; nothing was changed. Repeat the request later."
        return ApiProblem("storage_full", detail, retry_after_s=_ROOM_AGAIN_S)
    if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError):
        detail = "The database does not answer; nothing was changed. Repeat the request in a while."
        return ApiProblem("dependency_unavailable", detail, retry_after_s=_DATABASE_AGAIN_S)
    if isinstance(error, BlobStoreUnreachable):
        return ApiProblem(error.code, error.public, retry_after_s=_DATABASE_AGAIN_S)
    if isinstance(error, BlobUnusable):
        return ApiProblem("gone", error.public)
    return None
