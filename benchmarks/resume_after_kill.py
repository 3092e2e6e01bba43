"""How long an agent's run stands still when its worker is killed: from SIGKILL to the next request that its model gets.

    python benchmarks/resume_after_kill.py [--rounds 3] [--json]

A real service (`gateway up`) works with `examples/stubborn_model.py`; the worker is killed while the second request of a run
is in flight. The supervisor starts another; the sweeper finds the lease once it has run out. So the time is the rest of the
lease, up to one sweep, and what the new worker needs to start. Measured with the default lease and with a short one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import sqlalchemy as sa

from examples import catalogue, incident, pipeline
from examples.demo import running_service
from examples.stubborn_model import StubbornModel, serving
from gateway.store.engine import Database
from gateway.store.tables import items

LEASES: Mapping[str, Mapping[str, str]] = {
    "default: lease 15 s, heartbeat 5 s, sweep 2 s": {},
    "short: lease 2 s, heartbeat 0.5 s, sweep 0.25 s": {
        "SLUICEGATE_LEASE_S": "2",
        "SLUICEGATE_HEARTBEAT_S": "0.5",
        "SLUICEGATE_SWEEP_S": "0.25",
    },
}


class KillingModel(StubbornModel):
    """Kills the worker that asks for the second time, once, and notes when it is asked next."""

    def __init__(self, database: Path) -> None:
        super().__init__(catalogue.HALF_LEGIBLE_REGION)
        self._database = database
        self.killed_at: float | None = None
        self.stood_still_s: float | None = None
        self.resumed = threading.Event()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The stubborn answer, unless the one who asked was just killed."""
        number = sum(len(message.get("tool_calls") or ()) for message in request["messages"]) + 1
        if number == 2 and self.killed_at is None:
            self.killed_at = time.monotonic()
            os.kill(self._holder(), signal.SIGKILL)
        elif self.killed_at is not None and self.stood_still_s is None:
            self.stood_still_s = time.monotonic() - self.killed_at
            self.resumed.set()
        return super().answer(request)

    def _holder(self) -> int:
        database = Database(f"sqlite:///{self._database}")
        with database.read() as connection:
            owners = connection.execute(sa.select(items.c.lease_owner).where(items.c.lease_owner.is_not(None)))
            owner = str(owners.scalars().one())
        database.close()
        return int(owner.rsplit(":", 1)[1])


def measure(settings: Mapping[str, str]) -> float:
    """Seconds that one run stood still."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-resume-") as name:
        folder = Path(name)
        label = folder / catalogue.HALF_LEGIBLE_FILE
        label.write_bytes(catalogue.FILES[catalogue.HALF_LEGIBLE_FILE]())
        model = KillingModel(folder / "service" / "data" / "sluicegate.db")
        with serving(model) as endpoint:
            chosen = {**incident.settings(endpoint.url), **settings}
            service = running_service(folder / "service", settings=chosen)
            with service as url, pipeline.make_client(url) as client:
                incident.submit(client, catalogue.HALF_LEGIBLE, folder)
                if not model.resumed.wait(120):
                    raise SystemExit("the run did not go on within 120 s")
        assert model.stood_still_s is not None
        return model.stood_still_s


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="How long a run stands still when its worker is killed.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    for name, settings in LEASES.items():
        found[name] = sorted(round(measure(settings), 2) for _ in range(options.rounds))
        if not options.json:
            shown = ", ".join(f"{value:.1f}" for value in found[name])
            print(f"{name:50} median {statistics.median(found[name]):5.1f} s   ({shown})", flush=True)
    if options.json:
        print(json.dumps({"stood_still_s": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
