"""Read a submission from a request body, streaming each file to the blob store while its digest is taken."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from multipart import MultipartError, MultipartSegment, ParserLimitReached, PushMultipartParser, parse_options_header
from starlette.requests import Request

from gateway.api import request_values as values
from gateway.api.problems import ApiProblem, FieldError, invalid
from gateway.blobs import Blobs, BlobWriter
from gateway.strict_json import JsonRefused, loads, text_problem
from gateway.submission import MAX_FILES, FieldProblem, Submission, parse_submission

MAX_TEXT_PART_BYTES = 1024 * 1024
ITEM_PART = "item"
_MAX_PARTS = MAX_FILES + 64
_WINDOWS_PATH = re.compile(r'filename="((?:[A-Za-z]:|\\)\\[^"]*)"')
_TEXT_FIELDS = ("title", "text", "language", "profile", "external_id", "mode", "on_duplicate")
_JSON_FIELDS = ("attributes", "metadata", "budget", "files", "retention_days")
RAW_PREFIXES = ("image/", "audio/", "video/")
RAW_TYPES = ("application/pdf", "application/octet-stream")
ACCEPTED_TYPES = (
    "multipart/form-data",
    "application/json",
    "image/*",
    "audio/*",
    "application/pdf",
    "application/octet-stream",
)


@dataclass(slots=True)
class ReceivedFile:
    """One file part as it arrived."""

    part: str
    file_name: str | None
    declared_type: str | None
    writer: BlobWriter


@dataclass(slots=True)
class ReceivedBody:
    """A whole body: the submission's document and the files, not yet kept."""

    document: dict[str, Any] = field(default_factory=dict)
    submission: Submission = field(default_factory=Submission)
    files: list[ReceivedFile] = field(default_factory=list)


OnSubmission = Callable[[dict[str, Any], Submission], None]
"""Called as soon as the submission is known, before any file is read; may raise to refuse the rest."""


def media_type_of(header: str | None) -> tuple[str, Mapping[str, str]]:
    """The content type in lower case and its parameters."""
    if not header:
        return "", {}
    kind, options = parse_options_header(header)
    return kind, options


def is_accepted(media_type: str) -> bool:
    """Whether `POST /v1/items` takes a body of this content type."""
    return media_type in {"multipart/form-data", "application/json", *RAW_TYPES} or media_type.startswith(RAW_PREFIXES)


async def read_body(request: Request, blobs: Blobs, stack: AsyncExitStack, on_submission: OnSubmission) -> ReceivedBody:
    """The submission in a request. Files are temporary until kept: leaving `stack` removes those that were not.

    Raises `ApiProblem` that names what to change.
    """
    announced = digest_of(request.headers.get("content-digest") or request.headers.get("repr-digest"))
    if announced is None:
        return await _read_any(request, request.stream(), blobs, stack, on_submission)
    arrived = hashlib.sha256()
    body = await _read_any(request, _hashed(request.stream(), arrived), blobs, stack, on_submission)
    if arrived.digest() != announced:
        raise ApiProblem(
            "digest_mismatch",
            f"The body arrived with other bytes than the digest announces (SHA-256 {arrived.hexdigest()}). Send it again.",
        )
    return body


def digest_of(header: str | None) -> bytes | None:
    """The SHA-256 in a digest header (RFC 9530); None where it has none that can be read."""
    for member in (header or "").split(","):
        name, _, value = member.strip().partition("=")
        if name.strip().lower() == "sha-256":
            try:
                return base64.b64decode(value.split(";")[0].strip().strip(":"), validate=True)
            except ValueError:
                return None
    return None


async def _hashed(stream: AsyncIterator[bytes], digest: hashlib._Hash) -> AsyncIterator[bytes]:
    async for chunk in stream:
        digest.update(chunk)
        yield chunk


async def _read_any(
    request: Request,
    stream: AsyncIterator[bytes],
    blobs: Blobs,
    stack: AsyncExitStack,
    on_submission: OnSubmission,
) -> ReceivedBody:
    media_type, options = media_type_of(request.headers.get("content-type"))
    if media_type == "multipart/form-data":
        values.query(request, ())
        boundary = options.get("boundary")
        if not boundary:
            raise ApiProblem(
                "malformed_multipart",
                "The Content-Type has no boundary. Let your HTTP client set the header for multipart forms itself.",
            )
        return await _Multipart(boundary, blobs, stack, on_submission).read(stream)
    if media_type == "application/json":
        values.query(request, ())
        return await _read_json(stream, on_submission)
    return await _read_raw(request, media_type, stream, blobs, stack, on_submission)


class _Multipart:
    """Turns the parser's events into a `ReceivedBody`."""

    def __init__(self, boundary: str, blobs: Blobs, stack: AsyncExitStack, on_submission: OnSubmission) -> None:
        self._parser = _parser(boundary)
        self._blobs = blobs
        self._stack = stack
        self._on_submission = on_submission
        self._body = ReceivedBody()
        self._form: dict[str, Any] = {}
        self._seen: set[str] = set()
        self._has_item = False
        self._announced = False
        self._segment: MultipartSegment | None = None
        self._text: bytearray | None = None
        self._writer: BlobWriter | None = None
        self._unchosen: MultipartSegment | None = None
        """A file field that its form left empty, until bytes come after all."""

    async def read(self, stream: AsyncIterator[bytes]) -> ReceivedBody:
        received = 0
        try:
            async for chunk in stream:
                received += len(chunk)
                if chunk:
                    for event in self._parser.parse(chunk):
                        self._take(event)
            if not received:
                raise ApiProblem("malformed_multipart", "The body is empty. Send at least the part `item` or one file.")
            self._parser.close()
        except ParserLimitReached as error:
            if len(self._seen) >= _MAX_PARTS:
                raise ApiProblem("too_many_parts", f"The request has more than {_MAX_PARTS} parts.") from error
            raise ApiProblem("malformed_multipart", "A part has too many or too long header lines.") from error
        except MultipartError as error:
            raise ApiProblem(
                "malformed_multipart",
                "The form data is broken or ends too early: the closing boundary was not found where it should be. "
                "Send it again.",
            ) from error
        self._announce()
        return self._body

    def _take(self, event: MultipartSegment | bytes | None) -> None:
        if event is None:
            self._end_part()
            return
        if isinstance(event, MultipartSegment):
            self._begin_part(event)
            return
        if self._unchosen is not None:
            self._begin_file(self._unchosen, self._name)
        if self._writer is not None:
            self._writer.write(event)
        elif self._text is not None:
            self._text += event
            if len(self._text) > MAX_TEXT_PART_BYTES:
                raise ApiProblem(
                    "part_too_large",
                    f"The part `{self._name}` is not a file and has more than {MAX_TEXT_PART_BYTES:,} bytes.",
                    extra={"limit_bytes": MAX_TEXT_PART_BYTES},
                )

    @property
    def _name(self) -> str:
        return (self._segment.name if self._segment is not None else None) or ""

    def _begin_part(self, segment: MultipartSegment) -> None:
        self._segment = segment
        name = segment.name or ""
        check_part_name(name)
        if name in self._seen:
            raise ApiProblem(
                "malformed_multipart",
                f"The part `{name}` comes twice. Give each file a name of its own: p1, p2 and so on.",
                errors=[FieldError(name, "duplicate_part", "Rename one of the two.")],
            )
        self._seen.add(name)
        if name == ITEM_PART:
            self._begin_item()
        elif segment.filename == "":
            self._unchosen = segment
        elif _is_file(segment):
            self._begin_file(segment, name)
        else:
            self._text = bytearray()

    def _begin_item(self) -> None:
        if self._body.files:
            raise ApiProblem(
                "malformed_multipart",
                "The part `item` comes after a file. Send it first, so that a wrong request is refused before the files.",
                errors=[FieldError(ITEM_PART, "order", "Move this part to the front.")],
            )
        self._has_item = True
        self._text = bytearray()

    def _begin_file(self, segment: MultipartSegment, name: str) -> None:
        self._unchosen = None
        check_file_name(name, file_name_as_sent(segment))
        if len(self._body.files) >= MAX_FILES:
            raise ApiProblem(
                "too_many_parts",
                f"The request has more than {MAX_FILES} files. One item takes at most {MAX_FILES}; split it or leave some out.",
                extra={"limit": MAX_FILES},
            )
        self._announce()
        self._writer = self._stack.enter_context(self._blobs.writer())
        self._body.files.append(
            ReceivedFile(name, segment.filename or None, segment.content_type or None, self._writer)
        )

    def _end_part(self) -> None:
        text, self._text, self._writer, self._unchosen = self._text, None, None, None
        if text is None:
            return
        if self._name == ITEM_PART:
            self._body.document = as_object(bytes(text), ITEM_PART)
        elif self._name in _TEXT_FIELDS or self._name in _JSON_FIELDS:
            self._form[self._name] = form_value(self._name, bytes(text))

    def _announce(self) -> None:
        """Once, before the first file or at the end: the submission is known."""
        if self._announced:
            if self._form:
                raise ApiProblem(
                    "malformed_multipart",
                    f"The field `{next(iter(self._form))}` comes after a file. Send all fields before the files.",
                    errors=[FieldError(next(iter(self._form)), "order", "Move this field to the front.")],
                )
            return
        self._announced = True
        if self._has_item and self._form:
            raise ApiProblem(
                "invalid_request",
                f"The request has both the part `item` and the form field `{next(iter(self._form))}`. Use one of the two.",
            )
        if not self._has_item:
            self._body.document = dict(self._form)
        self._form = {}
        self._body.submission = submission_of(self._body.document)
        self._on_submission(self._body.document, self._body.submission)


def _parser(boundary: str) -> PushMultipartParser:
    try:
        return PushMultipartParser(boundary, max_header_size=4096, max_header_count=8, max_segment_count=_MAX_PARTS)
    except MultipartError as error:
        raise ApiProblem("malformed_multipart", "The boundary in the Content-Type is not valid.") from error


def _is_file(segment: MultipartSegment) -> bool:
    if segment.filename is not None:
        return True
    known = (segment.name or "") in _TEXT_FIELDS + _JSON_FIELDS
    return not known and segment.content_type is not None and not segment.content_type.startswith("text/")


def file_name_as_sent(segment: MultipartSegment) -> str | None:
    """A file part's name; with its folder where the parser dropped one, as it does with Windows paths."""
    sent = _WINDOWS_PATH.search(segment.header("Content-Disposition", ""))
    return segment.filename if sent is None else sent[1]


def check_part_name(name: str) -> None:
    """Raise unless a part's name is something that an answer can repeat."""
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise ApiProblem(
            "malformed_multipart", "A part has no name, or one that is longer than 64 characters or not printable."
        )


def check_file_name(part: str, file_name: str | None) -> None:
    """Raise for a file name with a folder, control characters, or more than 255 characters."""
    if file_name is None:
        return
    if "/" in file_name or "\\" in file_name or file_name in {".", ".."}:
        problem = "contains a folder; send the bare file name"
    elif not all(char.isprintable() or char == " " for char in file_name):
        problem = "contains control characters; rename the file"
    elif len(file_name) > 255 or text_problem(file_name):
        problem = "is longer than 255 characters or not valid Unicode; rename the file"
    else:
        return
    raise invalid(
        f"The file name of part `{part}` {problem}.", FieldError(part, "file_name", f"The file name {problem}.")
    )


def as_object(raw: bytes, part: str) -> dict[str, Any]:
    """The JSON object in a text part."""
    try:
        value = loads(raw)
    except JsonRefused as error:
        raise invalid(
            f"The part `{part}` cannot be read. {error}", FieldError(error.pointer or f"/{part}", "json", str(error))
        ) from error
    if not isinstance(value, dict):
        raise invalid(f"The part `{part}` must be a JSON object.", FieldError("", "type", "Send a JSON object."))
    return value


def form_value(name: str, raw: bytes) -> Any:
    """A form field's value: text as it is, the structured fields as JSON."""
    if name in _JSON_FIELDS:
        try:
            return loads(raw)
        except JsonRefused as error:
            raise invalid(
                f"The field `{name}` must be JSON. {error}", FieldError(f"/{name}", "json", str(error))
            ) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"The field `{name}` is not UTF-8.", FieldError(f"/{name}", "encoding", "Send UTF-8.")) from error
    problem = text_problem(text)
    if problem:
        raise invalid(f"The field `{name}` cannot be stored. {problem}", FieldError(f"/{name}", "text", problem))
    return text


def submission_of(document: dict[str, Any]) -> Submission:
    """The checked submission in a document. Raises `ApiProblem` naming each wrong field."""
    try:
        return parse_submission(document)
    except FieldProblem as error:
        raise field_problem(error) from error


def field_problem(error: FieldProblem) -> ApiProblem:
    """A 400 from the wrong fields of a submission."""
    first = error.problems[0]
    where = f" at {first[0]}" if first[0] else ""
    return invalid(
        f"The item part is not valid{where}: {first[2]}",
        *(FieldError(pointer, code, detail) for pointer, code, detail in error.problems),
    )


async def _read_json(stream: AsyncIterator[bytes], on_submission: OnSubmission) -> ReceivedBody:
    raw = bytearray()
    async for chunk in stream:
        raw += chunk
        if len(raw) > MAX_TEXT_PART_BYTES:
            raise ApiProblem(
                "part_too_large",
                f"A JSON body may have {MAX_TEXT_PART_BYTES:,} bytes at most.",
                extra={"limit_bytes": MAX_TEXT_PART_BYTES},
            )
    if not raw:
        raise invalid("The body is empty. Send a JSON object, or a form with the part `item` and files.")
    document = as_object(bytes(raw), ITEM_PART)
    submission = submission_of(document)
    if submission.files:
        raise ApiProblem(
            "missing_part",
            "A JSON body carries no files, but `files` names some. Send multipart/form-data with one part per file.",
            errors=[FieldError("/files", "missing_part", "Send these files as parts of a multipart body.")],
        )
    on_submission(document, submission)
    return ReceivedBody(document, submission, [])


_RAW_PARAMETERS = (*_TEXT_FIELDS, "role", "file_name")


async def _read_raw(
    request: Request,
    media_type: str,
    stream: AsyncIterator[bytes],
    blobs: Blobs,
    stack: AsyncExitStack,
    on_submission: OnSubmission,
) -> ReceivedBody:
    wanted = values.query(request, _RAW_PARAMETERS)
    document: dict[str, Any] = {name: wanted[name] for name in _TEXT_FIELDS if name in wanted}
    role, file_name = wanted.get("role"), wanted.get("file_name")
    document["files"] = [{"part": "p1", **({"role": role} if role else {})}]
    check_file_name("p1", file_name)
    submission = submission_of(document)
    on_submission(document, submission)
    writer = stack.enter_context(blobs.writer())
    async for chunk in stream:
        if chunk:
            writer.write(chunk)
    if writer.bytes == 0:
        raise invalid("The body is empty. Send the bytes of the file as the body.")
    return ReceivedBody(document, submission, [ReceivedFile("p1", file_name, media_type, writer)])
