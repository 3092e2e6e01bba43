"""What a run will do, from its seed alone: which products are sent when, and which process is killed when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Dispatch(StrEnum):
    """How the service is set up."""

    EMBEDDED = "embedded"
    """`sluicegate up` on SQLite."""
    CELERY = "celery"
    """`sluicegate serve` and two workers on PostgreSQL, with a broker."""


class Kind(StrEnum):
    """A product by what must become of it. The letter ends its marker, so that the model knows it too."""

    TITLE = "t"
    """No file: one request to the model."""
    DOCUMENT = "d"
    """A PDF: the agent reads it, then hands in its copy."""
    PHOTO = "p"
    """A label: judged by OCR, then as a document."""
    REFUSED = "r"
    """A thumbnail: refused without a model."""
    STUBBORN = "s"
    """A PDF whose model makes the same wrong call again and again, until a person is asked."""


class Target(StrEnum):
    """What is killed."""

    API = "api"
    WORKER = "worker"
    DECODER = "decoder host"
    SUPERVISOR = "supervisor"
    ALL = "all at once"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Product:
    """One submission."""

    at_s: float
    marker: str
    """In the title, the external id and the idempotency key: nothing else of the run holds this text."""
    kind: Kind
    is_async: bool
    """Sent with `Prefer: respond-async`."""
    is_repeated: bool
    """Sent once more after it was accepted."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL."""

    at_s: float
    target: Target
    choice: float
    """0..1, which one where there are several."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole run."""

    seed: int
    dispatch: Dispatch
    seconds: float
    products: tuple[Product, ...]
    kills: tuple[Kill, ...]


_SHARES = {Kind.TITLE: 45, Kind.DOCUMENT: 20, Kind.PHOTO: 4, Kind.REFUSED: 27, Kind.STUBBORN: 4}
_BAGS = {
    Dispatch.EMBEDDED: (
        *(Target.WORKER,) * 3, *(Target.API,) * 2, *(Target.DECODER,) * 2, Target.SUPERVISOR, Target.ALL,
    ),
    Dispatch.CELERY: (*(Target.WORKER,) * 4, *(Target.API,) * 2, *(Target.DECODER,) * 2, Target.BROKER),
}  # fmt: skip
PAUSE_S = (2.0, 5.0)
"""The least and the most seconds between two kills."""


def plan(
    seed: int, dispatch: Dispatch, *, seconds: float, per_second: float, pause_s: tuple[float, float] = PAUSE_S
) -> Plan:
    """The same for the same arguments."""
    return Plan(
        seed,
        dispatch,
        seconds,
        tuple(_products(random.Random(f"products {seed}"), seed, seconds, per_second)),
        tuple(_kills(random.Random(f"kills {seed}"), dispatch, seconds, pause_s)),
    )


def _products(chance: random.Random, seed: int, seconds: float, per_second: float) -> Iterator[Product]:
    kinds = list(_SHARES)
    for number in range(int(seconds * per_second)):
        (kind,) = chance.choices(kinds, list(_SHARES.values()))
        yield Product(
            at_s=number / per_second,
            marker=f"c{seed}x{number:05d}{kind.value}",
            kind=kind,
            is_async=chance.random() < 0.5,
            is_repeated=chance.random() < 0.1,
        )


def _kills(chance: random.Random, dispatch: Dispatch, seconds: float, pause_s: tuple[float, float]) -> Iterator[Kill]:
    """Dealt from a shuffled bag, so that each target has its turn in a short run too."""
    at_s = 0.0
    bag: list[Target] = []
    while True:
        at_s += chance.uniform(*pause_s)
        if at_s >= seconds:
            return
        if not bag:
            bag = list(_BAGS[dispatch])
            chance.shuffle(bag)
        yield Kill(at_s, bag.pop(), chance.random())
