"""What a caller says about an item: the `item` part, checked field by field against the profile's text limits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from gateway.item import Mode
from gateway.profiles import Profile
from gateway.strict_json import canonical

MAX_FILES = 20
MAX_METADATA = 50

Scalar = StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | StrictStr


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FileEntry(_Part):
    """What the item part says about one file part."""

    part: Annotated[StrictStr, Field(min_length=1, max_length=64)]
    role: Annotated[StrictStr, Field(max_length=64)] | None = None
    sha256: Annotated[StrictStr, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None


class BudgetEntry(_Part):
    """A tighter budget than the profile's; a looser one has no effect."""

    max_steps: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_cost: Annotated[Decimal, Field(ge=0, max_digits=12, decimal_places=6)] | None = None
    max_seconds: Annotated[float, Field(gt=0, le=86400)] | None = None


class Submission(_Part):
    """The item part. Unknown fields are ignored; a wrong type never is."""

    external_id: Annotated[StrictStr, Field(min_length=1, max_length=255)] | None = None
    mode: Literal["generate", "prepare"] = "generate"
    profile: Annotated[StrictStr, Field(min_length=1, max_length=64)] = "product-copy"
    title: StrictStr | None = None
    text: StrictStr | None = None
    language: Annotated[StrictStr, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$", max_length=35)] | None = None
    attributes: dict[str, Scalar | list[Scalar] | None] = Field(default_factory=dict)
    files: Annotated[list[FileEntry], Field(max_length=MAX_FILES)] = Field(default_factory=list)
    budget: BudgetEntry = BudgetEntry()
    on_duplicate: Literal["reuse", "new", "conflict"] = "reuse"
    callback_url: Annotated[StrictStr, Field(max_length=2000)] | None = None
    callback_secret_id: Annotated[StrictStr, Field(max_length=40)] | None = None
    """The webhook endpoint whose secret signs what is sent to `callback_url`."""
    metadata: Annotated[dict[str, Scalar | None], Field(max_length=MAX_METADATA)] = Field(default_factory=dict)
    retention_days: Annotated[StrictInt, Field(ge=1, le=3650)] | None = None
    supersedes: Annotated[StrictStr, Field(min_length=1, max_length=40)] | None = None
    """The item in whose place this one comes."""

    @property
    def item_mode(self) -> Mode:
        """As an enum."""
        return Mode(self.mode)


class FieldProblem(Exception):
    """The submission has wrong fields: (JSON pointer, code, sentence) each."""

    def __init__(self, problems: list[tuple[str, str, str]]) -> None:
        super().__init__(problems)
        self.problems = problems


def parse_submission(document: object) -> Submission:
    """The submission in a JSON document. Raises `FieldProblem` that names every wrong field, in the caller's terms."""
    if not isinstance(document, dict):
        raise FieldProblem([("", "type", f"The item part must be a JSON object, not {_json_type(document)}.")])
    try:
        return Submission.model_validate(document)
    except ValidationError as error:
        raise FieldProblem(_problems(error)) from error


def _problems(error: ValidationError) -> list[tuple[str, str, str]]:
    """One line per field: pydantic reports each branch of a union by itself, with the branch's name in the location."""
    by_pointer: dict[str, tuple[str, str, str]] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        location = [str(part) for part in item["loc"]]
        pointer = "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in _known_location(location))
        if pointer.startswith(("/attributes", "/metadata")) and item["type"] not in {"too_long"}:
            detail = "Must be a text, a number, true, false or null" + (
                ", or a list of these." if pointer.startswith("/attributes") else "."
            )
            by_pointer.setdefault(pointer, (pointer, "type", detail))
        else:
            by_pointer.setdefault(pointer, (pointer, item["type"], f"{item['msg']}."))
        if len(by_pointer) >= 20:
            break
    return list(by_pointer.values())


def _known_location(location: list[str]) -> list[str]:
    """The location without the names of union branches that pydantic puts into it."""
    if location[0] in {"attributes", "metadata"}:
        return location[:2]
    return location


def _json_type(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    return names.get(type(value), "an object")


def check_against_profile(submission: Submission, profile: Profile) -> None:
    """Hold the submission against the profile's text limits. Raises `FieldProblem` with limit and length, cuts nothing."""
    limits = profile.text_limits
    problems: list[tuple[str, str, str]] = []

    def measure(pointer: str, text: str | None, limit: int) -> None:
        if text is not None and len(text) > limit:
            problems.append(
                (pointer, "too_long", f"Has {len(text):,} characters; the profile takes at most {limit:,}. Shorten it.")
            )

    measure("/title", submission.title, limits.title_chars)
    measure("/text", submission.text, limits.text_chars)
    if len(submission.attributes) > limits.attributes:
        problems.append(
            ("/attributes", "too_many",
             f"Has {len(submission.attributes):,} attributes; the profile takes at most {limits.attributes:,}. Leave some out.")
        )  # fmt: skip
    else:
        for name, value in submission.attributes.items():
            pointer = f"/attributes/{name.replace('~', '~0').replace('/', '~1')[:120]}"
            measure(pointer, name, limits.attribute_name_chars)
            if isinstance(value, list) and len(value) > limits.attributes:
                problems.append(
                    (
                        pointer,
                        "too_many",
                        f"Has {len(value):,} values; the profile takes at most {limits.attributes:,}.",
                    )
                )
            else:
                measure(pointer, attribute_text(value), limits.attribute_value_chars)
    if submission.language is not None and submission.language not in profile.languages:
        problems.append(
            ("/language", "not_offered",
             f"The profile {profile.name} writes in {', '.join(profile.languages)}, not in {submission.language}.")
        )  # fmt: skip
    if problems:
        raise FieldProblem(problems[:20])


def attribute_text(value: object) -> str:
    """An attribute's value as a person would write it."""
    if isinstance(value, list):
        return ", ".join(attribute_text(part) for part in value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


VOLATILE_FIELDS = frozenset({"files", "callback_url", "callback_secret_id", "on_duplicate"})
"""Left out of the fingerprint: files count by role and content, and neither where an answer is sent nor what is done with a
second item of the same content changes that content."""


def meta_fingerprint(document: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of the item part without its volatile fields, in hex."""
    stable = {name: value for name, value in document.items() if name not in VOLATILE_FIELDS}
    return hashlib.sha256(canonical(stable).encode()).hexdigest()


def fingerprint(document: Mapping[str, Any], files: Iterable[tuple[str | None, str, int]]) -> str:
    """SHA-256 over the item part and the sorted (role, sha256, bytes) of its files, in hex.

    Neither boundary, header case, part or file names nor the order of the files matter.
    """
    listed = sorted([role or "", digest, size] for role, digest, size in files)
    text = canonical([meta_fingerprint(document), listed])
    return hashlib.sha256(text.encode()).hexdigest()


def content_key(*, tenant: str, profile_version: str, fingerprint_hex: str) -> str:
    """What makes two submissions without a key the same product under the same profile, in hex."""
    return hashlib.sha256(canonical([tenant, profile_version, fingerprint_hex]).encode()).hexdigest()
