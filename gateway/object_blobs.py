"""Uploaded bytes in an S3 bucket, beside the local copies that decoders need."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import structlog
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import S3Store

from gateway.blobs import (
    BlobDamaged,
    BlobMissing,
    BlobStoreUnreachable,
    BlobUnusable,
    BlobWriter,
    FolderBlobs,
    KeptBlob,
    StoredBlob,
)
from gateway.copies import Copies
from gateway.settings import Settings

if TYPE_CHECKING:
    from obstore.store import S3Config

log = structlog.get_logger()

_CHUNK_BYTES = 1 << 20
_MULTIPART_FROM_BYTES = 16 << 20
_CONNECT_S, _REQUEST_S, _RETRY_S = 5, 120, 20
_RETRIES = 3
_PROBE = ".writable"
_LISTED = 500
"""Names that one answer of the bucket has."""


def bucket_of(settings: Settings) -> S3Store:
    """The bucket that the settings name, under their prefix.

    Without a key in the settings obstore finds the one that AWS gives to machines and containers.
    """
    assert settings.blob_url is not None
    bucket, _, prefix = settings.blob_url.removeprefix("s3://").strip("/").partition("/")
    config: S3Config = {"region": settings.blob_region, "checksum_algorithm": "SHA256"}
    is_plain_http = False
    if settings.blob_endpoint_url is not None:
        config["endpoint"] = settings.blob_endpoint_url
        is_plain_http = settings.blob_endpoint_url.startswith("http://")
    if settings.blob_access_key_id is not None and settings.blob_secret_access_key is not None:
        config["access_key_id"] = settings.blob_access_key_id
        config["secret_access_key"] = settings.blob_secret_access_key.get_secret_value()
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        client_options={
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=_REQUEST_S),
            "allow_http": is_plain_http,
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
    )


class ObjectBlobs:
    """Blobs in a bucket: `<prefix>/<tenant>/<first two hex digits>/<sha256>`, with copies of the latest in a local folder.

    An upload goes to the folder while it is hashed, and to the bucket before it counts as kept.
    """

    def __init__(self, store: S3Store, folder: Path, *, cache_bytes: int) -> None:
        self._store = store
        self._local = FolderBlobs(folder)
        self._copies = Copies(folder / "by-tenant", cache_bytes)

    @property
    def copies(self) -> Copies:
        """Those in the local folder."""
        return self._copies

    def writer(self) -> BlobWriter:
        """Room for one upload."""
        return self._local.writer()

    def keep(self, tenant: str, blob: StoredBlob) -> Path:
        """Put a finished upload into the bucket, unless it is there. Raises `OSError`, `BlobStoreUnreachable`."""
        name = _name(tenant, blob.sha256)
        try:
            if self._size_of(name) != blob.bytes:
                obstore.put(self._store, name, blob.path, use_multipart=blob.bytes >= _MULTIPART_FROM_BYTES)
        except BaseError as error:
            raise BlobStoreUnreachable(type(error).__name__) from error
        try:
            return self._copies.add(self._copies.touch(self._local.keep(tenant, blob), is_written=True))
        except FileNotFoundError:  # there was one already, and it was just removed
            return self.path(tenant, blob.sha256)

    def path(self, tenant: str, sha256: str) -> Path:
        """A local copy, fetched where there is none; its digest is checked either way. Raises `BlobUnusable`."""
        try:
            return self._copies.touch(self._local.path(tenant, sha256))
        except (BlobUnusable, FileNotFoundError):  # there is none, or a damaged one, or it was just removed
            return self._copies.touch(self._fetch(tenant, sha256))

    def holds(self, tenant: str, sha256: str) -> bool:
        """Whether the bucket has a file of this digest. Raises `BlobStoreUnreachable`."""
        try:
            return self._size_of(_name(tenant, sha256)) is not None
        except BaseError as error:
            raise BlobStoreUnreachable(type(error).__name__) from error

    def remove(self, tenant: str, sha256: str) -> None:
        """Delete the file and this machine's copy. Raises `BlobStoreUnreachable`."""
        try:
            obstore.delete(self._store, _name(tenant, sha256))
        except (NotFoundError, FileNotFoundError):
            pass
        except BaseError as error:
            raise BlobStoreUnreachable(type(error).__name__) from error
        self._local.remove(tenant, sha256)

    def kept(self) -> Iterator[KeptBlob]:
        """What the bucket has, then this machine's copies: of a file that another machine removed one may be left."""
        try:
            for page in obstore.list(self._store, chunk_size=_LISTED):
                for found in page:
                    tenant, _, rest = found["path"].partition("/")
                    digest = rest.rpartition("/")[2]
                    if tenant and digest:
                        yield KeptBlob(tenant, digest, found["last_modified"].timestamp())
        except BaseError as error:
            raise BlobStoreUnreachable(type(error).__name__) from error
        yield from self._local.kept()

    def is_writable(self) -> bool:
        """Whether both the bucket and the local folder take files."""
        try:
            obstore.put(self._store, _PROBE, b"probe")
        except BaseError as error:
            log.warning("blobs.bucket_refuses", error=type(error).__name__)
            return False
        return self._local.is_writable()

    def remove_leftovers(self) -> int:
        """Delete uploads that a killed process left half-written in the local folder."""
        return self._local.remove_leftovers()

    def _size_of(self, name: str) -> int | None:
        try:
            return obstore.head(self._store, name)["size"]
        except (NotFoundError, FileNotFoundError):
            return None

    def _fetch(self, tenant: str, sha256: str) -> Path:
        with self._local.writer() as writer:
            try:
                for chunk in obstore.get(self._store, _name(tenant, sha256)).stream(min_chunk_size=_CHUNK_BYTES):
                    writer.write(bytes(chunk))
            except (NotFoundError, FileNotFoundError) as error:
                raise BlobMissing(sha256) from error
            except BaseError as error:
                raise BlobStoreUnreachable(type(error).__name__) from error
            if writer.sha256 != sha256:
                raise BlobDamaged(f"{sha256} holds other bytes")
            return self._copies.add(self._local.keep(tenant, writer.finish()))


def _name(tenant: str, sha256: str) -> str:
    return f"{tenant}/{sha256[:2]}/{sha256}"
