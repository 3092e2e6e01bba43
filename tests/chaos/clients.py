"""Clients that send products until each is accepted, with the same key every time, and write down what they were told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests import media
from tests.chaos.ledger import Book
from tests.chaos.plan import Kind, Product

_SENDERS = 12
_PATIENCE_S = 10.0
_LEAST_AGAIN_S, _MOST_AGAIN_S = 0.1, 2.0
_COME_AGAIN = frozenset({409, 429, 502, 503, 507})
ACCEPTED = frozenset({200, 201, 202})


def files_by_kind() -> Mapping[Kind, bytes]:
    """What is uploaded with each kind of product."""
    sheet = media.pdf_text()
    return {
        Kind.DOCUMENT: sheet,
        Kind.STUBBORN: sheet,
        Kind.PHOTO: media.label_photo(long_side=800),
        Kind.REFUSED: media.thumbnail(),
    }


class Clients:
    """They send at the planned times, and late where the service is away."""

    def __init__(self, url: str, products: Sequence[Product], book: Book) -> None:
        self._url = url
        self._products = products
        self._book = book
        self._files = files_by_kind()
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._given_up = threading.Event()

    def run(self) -> None:
        """Blocks until all products are accepted, or refused for good, or `give_up` was called."""
        self._began = time.monotonic()
        with ThreadPoolExecutor(_SENDERS, thread_name_prefix="client") as senders:
            for outcome in senders.map(self._deliver, self._products):
                assert outcome is None

    def begin_no_more(self) -> None:
        """Deliver what was begun; what a slow service has left no time for is no part of the run."""
        self._is_over.set()

    def give_up(self) -> None:
        """Leave what could not be delivered: the verdict will count it."""
        self._given_up.set()

    def _deliver(self, product: Product) -> None:
        if self._is_over.wait(max(0.0, self._began + product.at_s - time.monotonic())):
            return
        with httpx.Client(base_url=self._url, timeout=_PATIENCE_S, trust_env=False) as client:
            if self._until_accepted(client, product) and product.is_repeated:
                self._until_accepted(client, product)

    def _until_accepted(self, client: httpx.Client, product: Product) -> bool:
        again_s = _LEAST_AGAIN_S
        while not self._given_up.is_set():
            self._book.write(marker=product.marker, sent=True)
            try:
                answer = self._send(client, product)
            except httpx.TransportError as error:
                self._book.write(marker=product.marker, error=type(error).__name__)
            else:
                self._write_down(product, answer)
                if answer.status_code in ACCEPTED:
                    return True
                if answer.status_code not in _COME_AGAIN and answer.status_code != 500:
                    return False
            self._given_up.wait(again_s)
            again_s = min(_MOST_AGAIN_S, again_s * 2)
        return False

    def _send(self, client: httpx.Client, product: Product) -> httpx.Response:
        item = {"title": f"Linen towel {product.marker}", "external_id": product.marker}
        parts: dict[str, Any] = {"item": (None, json.dumps(item), "application/json")}
        if product.kind in self._files:
            parts["p1"] = ("p1", self._files[product.kind])
        headers = {"Idempotency-Key": product.marker, "Prefer": "respond-async" if product.is_async else "wait=1"}
        return client.post("/v1/items", files=parts, headers=headers)

    def _write_down(self, product: Product, answer: httpx.Response) -> None:
        is_json = "json" in answer.headers.get("content-type", "")
        body = answer.json() if is_json else {}
        told = {"id": body.get("id")} if answer.status_code in ACCEPTED else {"code": body.get("code")}
        replayed = answer.headers.get("idempotent-replayed") == "true"
        self._book.write(marker=product.marker, status=answer.status_code, replayed=replayed, **told)
