"""Claims per second with a long queue against a short one, on SQLite and on PostgreSQL: the cost must not grow with the backlog.

Each round claims from a queue of 1,000 and from one of `--waiting`, in turn, each claim a transaction of its own on a disk
that is synced as in production. PostgreSQL is started for the measurement, with its own durable settings.

    python benchmarks/claims.py [--waiting 200000] [--claims 300] [--rounds 3] [--json]

With `--waiting 1000000` it takes some minutes, nearly all of them to fill the tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1]))

from gateway.admission import AdmissionLimits
from gateway.store import backlog, items, migrate
from gateway.store.engine import Database
from gateway.store.tables import items as table
from tests.contracts.queue import new_item
from tests.contracts.servers import postgresql

FEW = 1_000
AT_ONCE = 5_000


def fill(database: Database, count: int) -> None:
    """So many waiting rows, of the size of real ones."""
    new = new_item()
    submission = {"title": "Oak table, oiled", "attributes": {"colour": "oak", "length_cm": 180}, "text": "x" * 400}
    now = int(time.time() * 1000)
    for start in range(0, count, AT_ONCE):
        rows = [
            {
                "id": f"itm_{number:026d}", "tenant": "default", "mode": "generate", "profile": new.profile,
                "profile_version": new.profile_version, "ruleset": new.ruleset, "status": "queued",
                "available_ms": now - count + number, "hinted_ms": now, "submission": submission, "notes": [],
                "usage": {}, "content_key": f"{number:064d}", "created_ms": now, "updated_ms": now,
            }
            for number in range(start, min(start + AT_ONCE, count))
        ]  # fmt: skip
        database.transact(lambda connection, rows=rows: connection.execute(table.insert(), rows))
    settle = ("ANALYZE",) if database.is_sqlite else ("VACUUM ANALYZE", "CHECKPOINT")
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in settle:
            connection.execute(sa.text(statement))


def claims_per_second(database: Database, claims: int) -> float:
    """The rate of one claimant."""
    started = time.perf_counter()
    for _ in range(claims):
        lease = database.transact(lambda connection: items.claim_next(connection, owner="bench", lease_ms=60_000))
        assert lease is not None
    return claims / (time.perf_counter() - started)


def look_ms(database: Database, looks: int = 5) -> float:
    """What it takes to see at the door how much waits, with the limits of a new installation."""
    taken = []
    for _ in range(looks):
        started = time.perf_counter()
        with database.read() as connection:
            backlog.waiting_by_tenant(connection, most=AdmissionLimits().max_waiting)
        taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken)


def measure(few: Database, many: Database, claims: int, rounds: int) -> dict[str, float]:
    """Medians over rounds that are measured in turn, so that both queues see the same machine."""
    rates: dict[str, list[float]] = {"few": [], "many": []}
    for database in (few, many):
        claims_per_second(database, 20)
    for _ in range(rounds):
        rates["few"].append(claims_per_second(few, claims))
        rates["many"].append(claims_per_second(many, claims))
    found = {name: statistics.median(values) for name, values in rates.items()}
    looks = {"look_ms_few": look_ms(few), "look_ms_many": look_ms(many)}
    return {**found, "many_over_few": found["many"] / found["few"], **looks}


@contextmanager
def sqlite_pair(folder: Path) -> Iterator[tuple[str, str]]:
    yield f"sqlite:///{folder / 'few.db'}", f"sqlite:///{folder / 'many.db'}"


@contextmanager
def postgresql_pair(folder: Path) -> Iterator[tuple[str, str]]:
    with postgresql(is_durable=True) as server, server.database() as few, server.database() as many:
        yield few, many


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, default=200_000, help="rows of the long queue")
    parser.add_argument("--claims", type=int, default=300, help="claims in a round; rounds x claims stays under 900")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rounds * options.claims > FEW - 50:
        parser.error(f"the short queue has {FEW} rows: fewer rounds or claims, please")
    report: dict[str, object] = {"waiting": options.waiting, "few": FEW}
    for name, pair in (("sqlite", sqlite_pair), ("postgresql", postgresql_pair)):
        with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder, pair(Path(folder)) as urls:
            few, many = (Database(url) for url in urls)
            for database, count in ((few, FEW), (many, options.waiting)):
                migrate.upgrade(database)
                fill(database, count)
            report[name] = found = measure(few, many, options.claims, options.rounds)
            few.close()
            many.close()
            if not options.json:
                print(
                    f"{name:<11}{found['few']:8.0f} claims/s with {FEW:,} waiting, {found['many']:8.0f} with "
                    f"{options.waiting:,}: x {found['many_over_few']:.2f}; a look at the door takes "
                    f"{found['look_ms_few']:.1f} and {found['look_ms_many']:.1f} ms"
                )
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
