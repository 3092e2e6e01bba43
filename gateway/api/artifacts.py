"""Routes of what can be made of an item's files: a list, and each of them as a download."""

from __future__ import annotations

import hashlib
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import artifacts, pipeline
from gateway.api import request_values as values
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, not_found
from gateway.api.purge import refuse_purged
from gateway.artifacts import Artifact
from gateway.item import Item
from gateway.profiles import Profile
from gateway.store import items as item_store
from gateway.wiring import Services
from prefilters.errors import DecodeStatus, ProbeError

_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""A stranger's picture or text must never run, nor be shown as a page of ours."""


class ArtifactRoutes:
    """Handlers of `/v1/items/{id}/artifacts`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/items/{item_id}/artifacts", tags=["items"])
        add = router.add_api_route
        add("", self.index, methods=["GET"], summary="What can be made of an item's files: pictures, pages, text")
        add("/{artifact_id}", self.get, methods=["GET"], summary="One of them, made anew, as a download")
        return router

    async def index(self, item_id: str, request: Request) -> Response:
        """Names and links; nothing is made yet."""
        values.query(request, ())
        item, _, found = await run_in_threadpool(self._look, item_id, principal_of(request.scope["state"]).tenant)
        return JSONResponse({"item": item.id, "artifacts": [_artifact_json(item, artifact) for artifact in found]})

    async def get(self, item_id: str, artifact_id: str, request: Request) -> Response:
        """The content, with its hash as ETag."""
        values.query(request, ())
        item, profile, found = await run_in_threadpool(self._look, item_id, principal_of(request.scope["state"]).tenant)
        artifact = next((each for each in found if each.id == artifact_id), None)
        if artifact is None:
            raise not_found("artifact of this id")
        content = await run_in_threadpool(self._made, item, profile, artifact)
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {**_HEADERS, "ETag": tag}
        if tag in _tags(request.headers.get("if-none-match")):
            return Response(status_code=304, headers=headers)
        headers["Content-Disposition"] = f'attachment; filename="{artifact.file_name}"'
        return Response(content, media_type=artifact.media_type, headers=headers)

    def _look(self, item_id: str, tenant: str) -> tuple[Item, Profile, list[Artifact]]:
        with self._services.database.read() as connection:
            item = item_store.get(connection, item_id, tenant=tenant)
        if item is None:
            raise not_found("item of this id")
        refuse_purged(item)
        profile = self._services.profiles.get(item.profile)
        if profile is None:
            raise ApiProblem("item_state_conflict", f"The profile {item.profile} is no longer installed.")
        return item, profile, artifacts.artifacts_of(pipeline.screened_files(self._services, item, profile))

    def _made(self, item: Item, profile: Profile, artifact: Artifact) -> bytes:
        try:
            return artifacts.make(self._services, item, profile, artifact)
        except ProbeError as error:
            if error.status is DecodeStatus.TIMEOUT:
                raise ApiProblem(
                    "dependency_unavailable",
                    "Making this took too long. Repeat the request in a while.",
                    retry_after_s=5,
                ) from error
            raise ApiProblem(
                "item_state_conflict",
                f"This cannot be made of the file: it is {error.status.value}.",
                extra={"item_status": item.status.value, "allowed": []},
            ) from error


def _tags(header: str | None) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in (header or "").split(",")]


def _artifact_json(item: Item, artifact: Artifact) -> dict[str, Any]:
    return {
        "id": artifact.id,
        "kind": artifact.kind.value,
        "file": artifact.file.record.id,
        "part": artifact.file.record.part,
        "page": artifact.page,
        "media_type": artifact.media_type,
        "links": {"self": f"/v1/items/{item.id}/artifacts/{artifact.id}"},
    }
