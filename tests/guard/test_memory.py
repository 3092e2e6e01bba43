"""What bounded memory keeps and forgets, held against the plainest thing that does the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from guard.memory import BoundedMap

KEYS = st.sampled_from([f"k{number}" for number in range(9)])
ACTIONS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "touch", "pop"]), KEYS), max_size=60)


class Plain:
    """Two lists and a scan."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.values: dict[str, int] = {}
        self.once: list[str] = []
        self.often: list[str] = []

    def put(self, key: str, value: int) -> None:
        known = key in self.values
        self.values[key] = value
        if known:
            self.touch(key)
            return
        self.once.append(key)
        if len(self.values) > self.limit:
            victims = self.once if len(self.once) > 1 or not self.often else self.often
            del self.values[victims.pop(0)]

    def touch(self, key: str) -> None:
        if key in self.once:
            self.once.remove(key)
            self.often.append(key)

    def pop(self, key: str) -> None:
        self.values.pop(key, None)
        for keys in (self.once, self.often):
            if key in keys:
                keys.remove(key)

    def items(self) -> list[tuple[str, int]]:
        return [(key, self.values[key]) for key in (*self.often, *self.once)]


@settings(max_examples=300)
@given(limit=st.integers(1, 6), before=ACTIONS, after=ACTIONS)
def test_what_was_put_once_is_forgotten_before_what_came_again(
    limit: int, before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    plain, memory = Plain(limit), BoundedMap[int](limit)
    for number, (action, key) in enumerate((*before, *after)):
        if number == len(before):  # as after a restart
            memory = BoundedMap(limit, memory.items(), memory.seen_once())
        for one in (plain, memory):
            one.put(key, number) if action == "put" else getattr(one, action)(key)
        assert list(memory.items()) == plain.items()
        assert list(memory.seen_once()) == plain.once
        assert {key: memory.get(key) for key in memory} == plain.values


def test_an_endless_run_of_new_and_repeated_keys_keeps_no_more_than_its_bound() -> None:
    memory = BoundedMap[int](100)
    for number in range(10_000):
        memory.put(f"k{number}", number)
        memory.touch(f"k{number - number % 7}")
        memory.put("always", number)
    assert len(memory) == 100
    assert memory.get("always") == 9_999
    assert len(memory._in_order) + len(memory._often) <= 300
