"""Celery's tasks: each takes an id and makes one call."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from gateway.work.celery_app import task_name
from gateway.work.dispatch import Bulkhead


def add_tasks(app: Celery, take: Callable[[str, Bulkhead], None]) -> None:
    """Give the application the tasks of a worker; `take` works on an item, if it is there to be taken."""

    @app.task(name=task_name(Bulkhead.EDGE))  # type: ignore[untyped-decorator]
    def edge(item_id: object) -> None:
        take(str(item_id), Bulkhead.EDGE)

    @app.task(name=task_name(Bulkhead.AGENT))  # type: ignore[untyped-decorator]
    def agent(item_id: object) -> None:
        take(str(item_id), Bulkhead.AGENT)
