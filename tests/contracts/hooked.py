"""`sluicegate serve` with a hook: it ends itself by SIGKILL at one moment of the first submission it takes.

python -m tests.contracts.hooked after_commit|before_commit
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from gateway import intake
from gateway.api import submit
from gateway.cli.processes import run_api
from gateway.settings import Settings
from gateway.wiring import Services


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after_commit() -> None:
    """The item is stored; neither workers nor the client were told."""
    accept: Callable[..., intake.Accepted] = intake.accept

    def accept_and_die(services: Services, incoming: intake.Incoming, **options: Any) -> intake.Accepted:
        accept(services, incoming, **options)
        die()
        raise AssertionError

    submit.intake.accept = accept_and_die  # type: ignore[attr-defined]


def before_commit() -> None:
    """Workers were told of an item that is not stored."""
    store: Callable[..., intake.Accepted] = intake._store

    def store_and_die(connection: Any, services: Services, *rest: Any, **options: Any) -> intake.Accepted:
        accepted = store(connection, services, *rest, **options)
        services.dispatch.wake(accepted.item_id)
        services.dispatch.close()  # sends what is still to be sent
        die()
        raise AssertionError

    intake._store = store_and_die


if __name__ == "__main__":
    {"after_commit": after_commit, "before_commit": before_commit}[sys.argv[1]]()
    run_api(Settings())
