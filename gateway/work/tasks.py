"""Celery's tasks: each takes an id and makes one call."""

from __future__ import annotations

from collections.abc import Callable, Collection

from celery import Celery

from gateway.work.celery_app import task_name
from gateway.work.dispatch import Bulkhead


def add_tasks(app: Celery, take: Callable[[str, Bulkhead], None], bulkheads: Collection[Bulkhead]) -> None:
    """Give the application the tasks of these queues; `take` works on what an id names, if it is there to be taken."""

    for bulkhead in bulkheads:
        app.task(_work(take, bulkhead), name=task_name(bulkhead))


def _work(take: Callable[[str, Bulkhead], None], bulkhead: Bulkhead) -> Callable[[object], None]:
    def work(named: object) -> None:
        take(str(named), bulkhead)

    return work
