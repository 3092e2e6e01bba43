"""Celery's tasks: each takes an id and makes one call."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from gateway.work.celery_app import task_name
from gateway.work.dispatch import Bulkhead


def add_tasks(app: Celery, take: Callable[[str, Bulkhead], None]) -> None:
    """Give the application the tasks of a worker; `take` works on an item, if it is there to be taken."""

    for bulkhead in Bulkhead:
        app.task(_work(take, bulkhead), name=task_name(bulkhead))


def _work(take: Callable[[str, Bulkhead], None], bulkhead: Bulkhead) -> Callable[[object], None]:
    def work(item_id: object) -> None:
        take(str(item_id), bulkhead)

    return work
