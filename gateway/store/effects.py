"""What an item's tools have changed: one row per effect, under a key that the same step has on every worker.

The row is written in the transaction that ends the step, so a worker that dies before it has changed nothing, and one that
dies after it leaves nothing to be done again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from gateway.item import Effect
from gateway.store.items import now_ms
from gateway.store.tables import effects
from gateway.strict_json import canonical


def effect_key(item_id: str, *, seq: int, tool: str, arguments: Mapping[str, Any]) -> str:
    """What makes two executions the same effect: item, step, tool and arguments. In hex."""
    return hashlib.sha256(canonical([item_id, seq, tool, dict(arguments)]).encode()).hexdigest()


def insert(connection: Connection, item_id: str, effect: Effect) -> None:
    """Write the effect. A second one under its key is an IntegrityError."""
    connection.execute(
        effects.insert(),
        {
            "key": effect_key(item_id, seq=effect.seq, tool=effect.tool, arguments=effect.arguments),
            "item_id": item_id,
            "seq": effect.seq,
            "tool": effect.tool,
            "arguments": dict(effect.arguments),
            "at_ms": now_ms(connection),
        },
    )
