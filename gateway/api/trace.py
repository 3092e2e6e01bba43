"""The trace of an item's run, folded: blocks by the page, and the calls of one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import timeline
from gateway.api import paging
from gateway.api import request_values as values
from gateway.api.gate import principal_of
from gateway.api.problems import not_found
from gateway.api.render import timestamp
from gateway.api.schemas import parameters
from gateway.settings import money
from gateway.store import items as item_store
from gateway.store import steps as step_store
from gateway.store.engine import Database
from gateway.timeline import MOST_BLOCKS, MOST_ROWS, Block, Call, Note, Timeline

_MONEY = {"type": "string", "description": "US dollars as a decimal string"}
_BLOCK: dict[str, Any] = {
    "type": "object",
    "required": ["number", "kind"],
    "properties": {
        "number": {"type": "integer", "description": "1 for the first block of the run"},
        "kind": {"type": "string", "enum": ["calls", "note"]},
        "attempt": {"type": "integer"},
        "tool": {"type": "string"},
        "arguments": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "first": {"type": "string", "description": "As JSON text"},
                    "last": {"type": "string"},
                    "values": {"type": "integer", "description": "How many different ones; at most 1,000 are counted"},
                    "changes": {"type": "boolean"},
                },
            },
        },
        "count": {"type": "integer"},
        "executed": {"type": "integer"},
        "first_step": {"type": "integer"},
        "last_step": {"type": "integer"},
        "first_at": {"type": "string", "format": "date-time"},
        "last_at": {"type": "string", "format": "date-time"},
        "distinct_results": {"type": "integer"},
        "codes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "cost": _MONEY,
        "repeats": {"type": "boolean"},
        "rail": {
            "type": "array",
            "description": "What the guard did, run by run",
            "items": {
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": [mark.value for mark in timeline.Mark]},
                    "count": {"type": "integer"},
                    "first_step": {"type": "integer"},
                    "reason": {"type": ["string", "null"]},
                    "said": {"type": ["string", "null"]},
                },
            },
        },
        "text": {"type": "string", "description": "Of a note"},
    },
}
_TRACE = {
    "type": "object",
    "required": ["item", "calls", "executed", "cost", "first_repetition", "blocks", "next_cursor"],
    "properties": {
        "item": {"type": "string"},
        "calls": {"type": "integer"},
        "executed": {"type": "integer"},
        "cost": _MONEY,
        "marks": {"type": "object", "additionalProperties": {"type": "integer"}},
        "first_repetition": {"type": ["integer", "null"], "description": "The number of the first block that repeats"},
        "blocks": {"type": "array", "items": _BLOCK},
        "next_cursor": {"type": ["string", "null"]},
    },
}
_CALLS = {
    "type": "object",
    "required": ["item", "block", "calls", "next_cursor"],
    "properties": {
        "item": {"type": "string"},
        "block": {"type": "integer"},
        "calls": {"type": "array", "items": {"type": "object"}},
        "next_cursor": {"type": ["string", "null"]},
    },
}


def _json(description: str, schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}


class TraceRoutes:
    """Handlers of `/v1/items/{id}/trace`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/items/{item_id}/trace", tags=["items"])
        add = router.add_api_route
        paged = {"parameters": parameters("cursor", "limit")}
        add(
            "", self.trace, methods=["GET"], summary="The run as blocks of calls that say the same",
            openapi_extra=paged, responses=_json("A page of blocks, oldest first", _TRACE),
        )  # fmt: skip
        add(
            "/blocks/{number}", self.block, methods=["GET"], summary="The calls of one block",
            openapi_extra=paged, responses=_json("A page of calls, oldest first", _CALLS),
        )  # fmt: skip
        return router

    async def trace(self, item_id: str, request: Request) -> Response:
        """Blocks from the cursor on."""
        wanted = values.query(request, paging.PARAMETERS)
        asked = paging.asked_in(wanted, usual=MOST_BLOCKS, most=MOST_BLOCKS)
        folded = await self._read(item_id, request, folded_run)
        start = 0 if asked.after is None else max(asked.after[0], 0)
        page = folded.blocks[start : start + asked.limit]
        end = start + len(page)
        return JSONResponse(
            {
                "item": item_id,
                "calls": folded.calls,
                "executed": folded.executed,
                "cost": money(folded.cost),
                "marks": {mark.value: count for mark, count in folded.marks.items()},
                "first_repetition": folded.first_repetition,
                "blocks": [_note_json(block) if isinstance(block, Note) else _block_json(block) for block in page],
                "next_cursor": paging.encode_cursor((end, "block")) if end < len(folded.blocks) else None,
            }
        )

    async def block(self, item_id: str, number: int, request: Request) -> Response:
        """Calls of the block from the cursor on."""
        wanted = values.query(request, paging.PARAMETERS)
        asked = paging.asked_in(wanted, usual=MOST_ROWS, most=MOST_ROWS)
        start = 0 if asked.after is None else max(asked.after[0], 0)
        calls = await self._read(item_id, request, lambda connection, found: calls_of_block(connection, found, number))
        if calls is None:
            raise not_found("block of this number")
        page = calls[start : start + asked.limit]
        end = start + len(page)
        return JSONResponse(
            {
                "item": item_id,
                "block": number,
                "calls": [_call_json(call) for call in page],
                "next_cursor": paging.encode_cursor((end, "call")) if end < len(calls) else None,
            }
        )

    async def _read(self, item_id: str, request: Request, look: Callable[[Connection, str], Any]) -> Any:
        tenant = principal_of(request.scope["state"]).tenant

        def run() -> Any:
            with self._database.read() as connection:
                if item_store.get(connection, item_id, tenant=tenant) is None:
                    raise not_found("item of this id")
                return look(connection, item_id)

        return await run_in_threadpool(run)


def folded_run(connection: Connection, item_id: str) -> Timeline:
    """All that the item's agent did, folded."""
    return timeline.fold(timeline.entries_of_steps(step_store.all_of(connection, item_id)))


def calls_of_block(connection: Connection, item_id: str, number: int) -> list[Call] | None:
    """The calls of one block, oldest first; None if there is no such block, or it is a note."""
    entries = list(timeline.entries_of_steps(step_store.all_of(connection, item_id)))
    return timeline.calls_of(entries, number)


def _block_json(block: Block) -> dict[str, Any]:
    return {
        "number": block.number,
        "kind": "calls",
        "attempt": block.attempt,
        "tool": block.tool,
        "arguments": [
            {
                "name": each.name,
                "first": each.first,
                "last": each.last,
                "values": each.values,
                "changes": each.changes,
            }
            for each in block.arguments
        ],
        "raw_arguments": block.raw_arguments,
        "count": block.count,
        "executed": block.executed,
        "first_step": block.first_step,
        "last_step": block.last_step,
        "first_at": timestamp(block.first_ms),
        "last_at": timestamp(block.last_ms),
        "distinct_results": block.distinct_results,
        "codes": dict(block.codes),
        "first_result": block.first_excerpt,
        "last_result": block.last_excerpt,
        "cost": money(block.cost),
        "repeats": block.repeats,
        "rail": [
            {
                "action": stretch.mark.value,
                "count": stretch.count,
                "first_step": stretch.first_step,
                "reason": stretch.reason,
                "said": stretch.said,
            }
            for stretch in block.rail
        ],
    }


def _note_json(note: Note) -> dict[str, Any]:
    remark = note.remark
    return {
        "number": note.number,
        "kind": "note",
        "attempt": remark.attempt,
        "what": remark.kind,
        "text": remark.text,
        "by": remark.by,
        "first_at": timestamp(remark.at_ms),
        "cost": money(remark.cost),
    }


def _call_json(call: Call) -> dict[str, Any]:
    return {
        "step": call.step,
        "attempt": call.attempt,
        "tool": call.tool,
        "arguments": call.arguments,
        "executed": call.executed,
        "action": call.mark.value,
        "reason": call.reason,
        "said": call.said,
        "error": call.code,
        "result": call.excerpt,
        "at": timestamp(call.at_ms),
        "ended_at": timestamp(call.ended_ms),
        "cost": money(call.cost),
    }
