"""Uploaded bytes, once per tenant by content hash: what a store of them does, and the one in a local folder.

In the folder a file is written to a temporary name, fsynced and renamed, and what is read is what was written: its digest is
checked. The other store is `gateway.object_blobs`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

from gateway.copies import Copies

_HEAD_BYTES = 4096
_HELD_BYTES = 1024 * 1024
"""Of one upload in memory before it goes to its file."""
_LOCKED_WITHIN_S = 1.0
"""More than lies between the making of an upload's file and its lock."""


class BlobUnusable(Exception):
    """A stored file is gone, or no longer what was uploaded; a repeat does not help."""

    code = "file_unreadable"
    retryable = False
    public = "A file of this item can no longer be read as it was uploaded. Please send the item again."


class BlobMissing(BlobUnusable):
    """There is no file of this digest."""


class BlobDamaged(BlobUnusable):
    """The bytes that are there have another digest than those that were uploaded."""


class BlobStoreUnreachable(Exception):
    """The store of uploaded files does not answer; a repeat may help."""

    code = "dependency_unavailable"
    retryable = True
    public = "The store of uploaded files cannot be reached; nothing was kept. Repeat the request in a while."


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One uploaded file that is complete, under a temporary name until it is kept."""

    sha256: str
    bytes: int
    path: Path


@dataclass(frozen=True, slots=True)
class KeptBlob:
    """One file that a store keeps."""

    tenant: str
    sha256: str
    kept_at: float
    """Unix seconds: when it was written."""


class BlobWriter:
    """Takes one upload piece by piece and hashes it on the way.

    Up to `_HELD_BYTES` are held in memory before they are written, so that whoever receives a small upload in an event loop
    does not wait for the disk there. `finish` makes it durable under its temporary name, `Blobs.keep` gives it its place;
    leaving the context without either removes it. `head` holds the first 4 KiB, which is all that naming the format needs.
    The file stays open and locked until then, so that another process can tell it from one whose writer was killed.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"upload-{secrets.token_hex(16)}"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file: IO[bytes] | None = os.fdopen(descriptor, "wb", buffering=0)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_over = False
        self._digest = hashlib.sha256()
        self.head = b""
        self.bytes = 0

    def write(self, chunk: bytes) -> None:
        """Append a piece. Raises `OSError` when the disk is full."""
        if self._is_over:
            raise ValueError("this upload is already finished")
        if len(self.head) < _HEAD_BYTES:
            self.head += chunk[: _HEAD_BYTES - len(self.head)]
        self._digest.update(chunk)
        self.bytes += len(chunk)
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        if self._held_bytes >= _HELD_BYTES:
            self._flush()

    @property
    def sha256(self) -> str:
        """Of all that was written so far, in hex."""
        return self._digest.hexdigest()

    def finish(self) -> StoredBlob:
        """Put the bytes on the disk for good (fsync); blocks for as long as the disk takes. Raises `OSError`."""
        if not self._is_over:
            self._is_over = True
            os.fsync(self._flush().fileno())
        return StoredBlob(sha256=self.sha256, bytes=self.bytes, path=self.path)

    def _flush(self) -> IO[bytes]:
        """Write what is held."""
        if self._file is None:
            raise ValueError("this upload is already discarded")
        held, self._held, self._held_bytes = self._held, [], 0
        view = memoryview(held[0] if len(held) == 1 else b"".join(held))
        while view:
            view = view[self._file.write(view) :]
        return self._file

    def discard(self) -> None:
        """Forget the upload; harmless after it was kept."""
        self._is_over = True
        self._held = []
        if self._file is not None:
            self._file.close()
            self._file = None
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class Blobs(Protocol):
    """A store of uploaded files. All calls may block, and are safe from several threads."""

    def writer(self) -> BlobWriter:
        """Room for one upload."""

    def keep(self, tenant: str, blob: StoredBlob) -> Path:
        """Give a finished upload its lasting place; gives a local copy. Raises `OSError`, `BlobStoreUnreachable`."""

    def path(self, tenant: str, sha256: str) -> Path:
        """A local copy of a kept blob whose digest was checked. Raises `BlobUnusable`, `BlobStoreUnreachable`."""

    def holds(self, tenant: str, sha256: str) -> bool:
        """Whether a file of this digest is kept. Raises `BlobStoreUnreachable`."""

    def remove(self, tenant: str, sha256: str) -> None:
        """Delete a kept file; harmless where there is none. Raises `OSError`, `BlobStoreUnreachable`."""

    def kept(self) -> Iterator[KeptBlob]:
        """All files that are kept, in no order, found piece by piece. Raises `BlobStoreUnreachable`."""

    def is_writable(self) -> bool:
        """Whether an upload could be stored now."""

    def remove_leftovers(self) -> int:
        """Delete what a killed process left half-written; gives how many files."""

    @property
    def copies(self) -> Copies | None:
        """What this machine has of files that are kept elsewhere; None where they are kept here."""


class FolderBlobs:
    """Blobs in a local folder: `<root>/by-tenant/<tenant>/<sha256>`.

    One folder a tenant, so that uploads at the same time share one sync of it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._syncs = _GroupSync()
        self._checked = _CheckedFiles()
        self._anchored: set[Path] = set()

    @property
    def copies(self) -> Copies | None:
        """None: the folder is the store."""
        return None

    def writer(self) -> BlobWriter:
        """Room for one upload."""
        return BlobWriter(self._incoming)

    def path(self, tenant: str, sha256: str) -> Path:
        """Where a kept blob lies, once its digest was checked. Raises `BlobMissing`, `BlobDamaged`."""
        path = self._place(tenant, sha256)
        if not self._checked.holds(path, sha256):
            raise BlobDamaged(f"{path.name} holds other bytes")
        return path

    def keep(self, tenant: str, blob: StoredBlob) -> Path:
        """Give a finished upload its lasting place. The same content twice is stored once; a damaged copy is replaced."""
        target = self._place(tenant, blob.sha256)
        self._anchor(target.parent)
        if self._is_sound(target, blob.sha256):
            blob.path.unlink(missing_ok=True)
        else:
            blob.path.rename(target)
            self._checked.remember(target)
        self._syncs.sync(target.parent)
        return target

    def holds(self, tenant: str, sha256: str) -> bool:
        """Whether a file of this digest is kept."""
        return self._place(tenant, sha256).is_file()

    def remove(self, tenant: str, sha256: str) -> None:
        """Delete a kept file; harmless where there is none."""
        self._place(tenant, sha256).unlink(missing_ok=True)

    def kept(self) -> Iterator[KeptBlob]:
        """All files that are kept, in no order."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / "by-tenant") as tenants:
            for tenant in tenants:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(tenant.path) as found:
                    for entry in found:
                        with contextlib.suppress(FileNotFoundError):
                            yield KeptBlob(tenant.name, entry.name, entry.stat().st_mtime)

    def _place(self, tenant: str, sha256: str) -> Path:
        return self.root / "by-tenant" / tenant / sha256

    def _anchor(self, folder: Path) -> None:
        """Make a tenant's folder, on the disk with all above it; whoever found it there may not know that of its maker."""
        if folder in self._anchored and folder.exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.parents:
            _sync_folder(path)
            if path == self.root:
                break
        self._anchored.add(folder)

    def _is_sound(self, path: Path, sha256: str) -> bool:
        try:
            return self._checked.holds(path, sha256)
        except BlobMissing:
            return False

    def is_writable(self) -> bool:
        """Whether an upload could be stored now."""
        try:
            with self.writer() as probe:
                probe.write(b"probe")
                probe.finish()
        except OSError:
            return False
        return True

    def remove_leftovers(self) -> int:
        """Delete uploads that a killed process left half-written, while others may be writing theirs; gives how many."""
        created_before = time.time() - _LOCKED_WITHIN_S
        return sum(_remove_unlocked(path, created_before) for path in self._incoming.iterdir())


def _remove_unlocked(path: Path, created_before: float) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ctime >= created_before:  # its writer may not have locked it yet, and must find it free
            return False
    with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_ctime < created_before:
            path.unlink(missing_ok=True)
            return True
    return False


class _CheckedFiles:
    """Which files were seen to have the digest that they should: each is read through once as long as nobody touches it."""

    MOST = 10_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[Path, tuple[int, int, int]] = OrderedDict()

    def holds(self, path: Path, sha256: str) -> bool:
        """Whether the file has this digest. Raises `BlobMissing` where there is no file."""
        try:
            with path.open("rb") as file:
                mark = _mark(os.fstat(file.fileno()))
                with self._lock:
                    if self._seen.get(path) == mark:
                        return True
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    return False
        except FileNotFoundError as error:
            raise BlobMissing(path.name) from error
        self._note(path, mark)
        return True

    def remember(self, path: Path) -> None:
        """This file was hashed while it was written."""
        self._note(path, _mark(path.stat()))

    def _note(self, path: Path, mark: tuple[int, int, int]) -> None:
        with self._lock:
            self._seen[path] = mark
            while len(self._seen) > self.MOST:
                self._seen.popitem(last=False)


def _mark(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


class _GroupSync:
    """Folder syncs that wait for each other anyway are done once for all: whoever comes first syncs for those behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_folder: dict[Path, _FolderTurn] = {}

    def sync(self, folder: Path) -> None:
        """Return once a sync of the folder that began after this call has ended."""
        with self._lock:
            turn = self._by_folder.setdefault(folder, _FolderTurn())
            turn.asked += 1
            ticket = turn.asked
        with turn.leader:
            if turn.synced >= ticket:
                return
            with self._lock:
                covered = turn.asked
            _sync_folder(folder)
            turn.synced = covered


class _FolderTurn:
    """How many syncs of one folder were asked for, and up to which they are done."""

    __slots__ = ("asked", "leader", "synced")

    def __init__(self) -> None:
        self.leader = threading.Lock()
        self.asked = 0
        self.synced = 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
