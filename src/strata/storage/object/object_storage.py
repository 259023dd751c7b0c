"""ObjectStorage: the contract over any store that obstore speaks to.

``write_new`` is always one conditional PUT. Completing a multipart upload on condition is not atomic on every
server, so it is never used.
"""

from __future__ import annotations

import atexit
import functools
import logging
import time
import uuid
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from urllib.parse import urlsplit

import obstore

from strata.errors import (
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
    UnsafeStoreError,
)
from strata.storage.object.download import read_bytes, read_into
from strata.storage.object.error_mapping import configured, translated
from strata.storage.object.object_ref import ObjectRef
from strata.storage.object.probe import honours_put_if_absent
from strata.storage.object.retry import QUICK_ATTEMPTS, Patience, RetryPolicy
from strata.storage.object.upload import Upload, UploadWriter
from strata.storage.object_keys import RESERVED, check_key, check_prefix, check_root
from strata.storage.protocol import ObjectInfo, check_range, view_bytes, view_writable
from strata.storage.waits import Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from obstore import ObjectMeta
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20
MIN_PART_BYTES = 5 << 20
CONCURRENCY = 8
LIST_PAGE = 1000
# Names the writer of an object, in its metadata; see ObjectStorage.write_new. Azure takes no dash in it, and
# proxies drop headers with an underscore.
WRITER = "stratawriter"
# How long the interpreter lets obstore's threads finish before it ends.
EXIT_GRACE_S = 0.05
T = TypeVar("T")


class Transfer(TypedDict, total=False):
    """How bytes are moved, the same for every service.

    ``allow_unsafe`` accepts a store that ignores put-if-absent: there, two writers of one ``write_new`` can both
    succeed.
    """

    retry: RetryPolicy | None
    part_bytes: int
    concurrency: int
    allow_unsafe: bool


class ObjectStorage:
    """Objects in a bucket, below ``prefix``. Memory is bounded by parts under way, never by the object.

    ``connect`` makes the store from those of ``config`` that are not None, and from ``client_options`` and
    ``retry_config``. ``max_single_put_bytes`` and ``max_parts`` are the limits of the service. The rest is
    :class:`Transfer`.
    """

    def __init__(
        self,
        connect: Callable[..., ObjectStore],
        config: Mapping[str, Any],
        *,
        backend: str,
        endpoint: str | None,
        prefix: str,
        retry: RetryPolicy | None = None,
        part_bytes: int = PART_BYTES,
        concurrency: int = CONCURRENCY,
        max_single_put_bytes: int = 5 << 30,
        max_parts: int = 10_000,
        allow_unsafe: bool = False,
    ) -> None:
        if part_bytes < MIN_PART_BYTES:
            raise ValueError(f"part_bytes={part_bytes} is less than {MIN_PART_BYTES}, which S3 asks for")
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency} must be 1 or more")
        _yield_at_exit()
        self._retry = retry or RetryPolicy()
        with configured(backend):
            given = {name: value for name, value in config.items() if value is not None}
            # An endpoint that was given without encryption is meant so.
            allow_http = endpoint is not None and endpoint.startswith("http://")
            given["client_options"] = self._retry.client_config(allow_http=allow_http)
            self._store = connect(**given, retry_config=self._retry.retry_config())
            # A conditional PUT is retried here and not by obstore: only here a lost answer can be understood.
            self._store_once = connect(**given, retry_config=self._retry.retry_config(max_attempts=1))
            # What is one request is given back after a few attempts, and then tried again here, where it is logged.
            few = self._retry.max_attempts or QUICK_ATTEMPTS
            self._store_quick = connect(**given, retry_config=self._retry.retry_config(max_attempts=few))
        self._backend = backend
        host = urlsplit(endpoint).netloc.rpartition("@")[2] if endpoint is not None else ""
        self._where = f"{backend} at {host}" if host else backend
        self._prefix = check_root(prefix)
        self._part_bytes = part_bytes
        self._concurrency = concurrency
        self._max_single_put_bytes = max_single_put_bytes
        self._max_parts = max_parts
        self._allow_unsafe = allow_unsafe
        self._honours_put_if_absent: bool | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._backend!r}, prefix={self._prefix!r})"

    @property
    def local_files(self) -> None:
        """Its objects are on other machines."""

    async def write(self, path: str, data: Buffer) -> None:
        """Put the object in place, over any older one; a large one in parts, straight from ``data``.

        An upload whose parts a store has lost, because it restarted say, begins anew.
        """
        ref, view = self._ref(path), view_bytes(data)
        with Request(self._where, "write", path):
            await self._write(ref, view)

    async def _write(self, ref: ObjectRef, view: memoryview) -> None:
        if len(view) <= ref.part_bytes:
            await self._ask(ref.path, lambda store: obstore.put_async(store, ref.key, view, use_multipart=False))
            return
        # The largest object must fit the number of parts that the service takes.
        ref = replace(ref, part_bytes=max(ref.part_bytes, -(-len(view) // self._max_parts)))
        patience = Patience(self._retry)
        while True:
            try:
                await self._upload(ref, view)
            except StorageUnavailableError as error:
                await patience.pause(error)
            else:
                return

    async def _upload(self, ref: ObjectRef, view: memoryview) -> None:
        upload = Upload(ref)
        try:
            for start in range(0, len(view), ref.part_bytes):
                await upload.send(view[start : start + ref.part_bytes])
            await upload.finish()
        except BaseException:
            await upload.abandon()
            raise

    async def write_new(self, path: str, data: Buffer) -> None:
        """Put the object in place only if there is none: exactly one of many writers succeeds.

        An answer that got lost does not hide who won: the object carries its writer's token, and a writer
        that finds an object after a failed attempt asks whose it is.
        """
        ref, view = self._ref(path), view_bytes(data)
        if len(view) > self._max_single_put_bytes:
            raise StorageError(
                f"{len(view)} bytes are more than one conditional PUT takes ({self._max_single_put_bytes})",
                path=path,
                backend=self._backend,
                hint="use write() for large objects and write_new() for the small one that commits them",
            )
        with Request(self._where, "write", path):
            await self._write_new(ref, view)

    async def _write_new(self, ref: ObjectRef, view: memoryview) -> None:
        if not await self._is_safe() and await self._exists(ref):
            raise ObjectExistsError(ref.path, backend=self._backend)
        token, patience = uuid.uuid4().hex, Patience(self._retry)
        while True:
            try:
                await self._put_if_absent(ref, view, token)
            except ObjectExistsError:
                if patience.attempts and await self._token_of(ref) == token:
                    return
                raise
            except StorageUnavailableError as error:
                await patience.pause(error, hint="the object may be there or not; ")
            else:
                return

    async def read(self, path: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> bytes:
        """Return exactly ``length`` bytes from ``start``, or all from there."""
        check_range(start, length)
        ref = self._ref(path)
        with Request(self._where, "read", path):
            return await read_bytes(ref, start, length, etag)

    async def read_into(self, path: str, buffer: Buffer, *, start: int = 0) -> None:
        """Fill the buffer from ``start`` with parallel requests, all of them of one version of the object."""
        check_range(start, None)
        ref, view = self._ref(path), view_writable(buffer)
        with Request(self._where, "read", path):
            await read_into(ref, view, start)

    async def exists(self, path: str) -> bool:
        """Whether there is an object at ``path``."""
        ref = self._ref(path)
        with Request(self._where, "look up", path):
            return await self._exists(ref)

    async def _exists(self, ref: ObjectRef) -> bool:
        try:
            await self._ask(ref.path, lambda store: obstore.head_async(store, ref.key))
        except ObjectNotFoundError:
            return False
        return True

    async def delete(self, path: str) -> None:
        """Remove the object; one that is not there is fine."""
        ref = self._ref(path)
        with Request(self._where, "delete", path), suppress(ObjectNotFoundError):
            await self._ask(path, lambda store: obstore.delete_async(store, ref.key))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield every object below ``prefix``, as the store pages through them."""
        below = self._join(check_prefix(prefix))
        cut = len(self._prefix) + 1 if self._prefix else 0
        async for meta in self._list(prefix, below or None):
            path = meta["path"][cut:]
            # What has another name than a key can have, or is a probe under way, is not ours to show.
            with suppress(InvalidKeyError):
                check_key(path)
                yield ObjectInfo(path, meta["size"], meta["last_modified"].timestamp(), meta["e_tag"])

    async def _list(self, prefix: str, below: str | None) -> AsyncIterator[ObjectMeta]:
        """Page through a listing; a page that fails is asked for again, from behind what was seen."""
        last: str | None = None
        pages: AsyncIterator[Sequence[ObjectMeta]] | None = None

        async def fetch_page() -> Sequence[ObjectMeta]:
            nonlocal pages
            patience = Patience(self._retry)
            while True:
                try:
                    with translated(prefix, self._backend):
                        if pages is None:
                            pages = aiter(obstore.list(self._store_quick, below, offset=last, chunk_size=LIST_PAGE))
                        # Not anext with a default: that cannot be used with what obstore's iterators return.
                        return await anext(pages)
                except StopAsyncIteration:
                    return ()
                except StorageUnavailableError as error:
                    pages = None
                    await patience.pause(error)

        while True:
            # Around one page, because what the caller does with it is not the store's time.
            with Request(self._where, "list", prefix):
                page = await fetch_page()
            if not page:
                return
            for meta in page:
                yield meta
                last = meta["path"]

    @asynccontextmanager
    async def writer(self, path: str, *, size_bytes: int | None = None) -> AsyncIterator[UploadWriter]:
        """Write piece by piece; publish when the block ends normally, leave nothing otherwise."""
        ref = self._ref(path)
        if size_bytes is not None:
            ref = replace(ref, part_bytes=max(ref.part_bytes, -(-size_bytes // self._max_parts)))
        writer = UploadWriter(ref, max_parts=self._max_parts, where=self._where)
        try:
            yield writer
            await writer.publish()
        except BaseException:
            await writer.abandon()
            raise

    def _join(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _ref(self, path: str) -> ObjectRef:
        key = self._join(check_key(path))
        return ObjectRef(self._store, key, path, self._backend, self._part_bytes, self._concurrency)

    async def _ask(self, path: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Do what is one request, as often as the policy has time for."""
        patience = Patience(self._retry)
        while True:
            try:
                with translated(path, self._backend):
                    return await work(self._store_quick)
            except StorageUnavailableError as error:
                await patience.pause(error)

    async def _put_if_absent(self, ref: ObjectRef, view: memoryview, token: str) -> None:
        with translated(ref.path, self._backend):
            await obstore.put_async(
                self._store_once,
                ref.key,
                view,
                mode="create",
                attributes={WRITER: token},
                use_multipart=False,
            )

    async def _token_of(self, ref: ObjectRef) -> str | None:
        result = await self._ask(ref.path, lambda store: obstore.get_async(store, ref.key, options={"head": True}))
        return result.attributes.get(WRITER)

    async def _is_safe(self) -> bool:
        """Whether put-if-absent can be relied on; asked of the store once."""
        if self._honours_put_if_absent is None:
            directory = self._join(f"{RESERVED}probe")
            honours = await self._probe(directory)
            if not honours and not self._allow_unsafe:
                raise UnsafeStoreError(directory, backend=self._backend)
            if not honours:
                log.warning("%r ignores put-if-absent: two workers could both commit a checkpoint", self)
            self._honours_put_if_absent = honours
        return self._honours_put_if_absent

    async def _probe(self, directory: str) -> bool:
        patience = Patience(self._retry)
        while True:
            try:
                return await honours_put_if_absent(self._store_once, directory, backend=self._backend)
            except StorageUnavailableError as error:
                await patience.pause(error)


@functools.cache
def _yield_at_exit() -> None:
    """Let obstore's threads have the interpreter's lock once more before it ends.

    After an awaited call has returned, a thread of its runtime may still wait for that lock to put things
    away. If the interpreter ends meanwhile, the process aborts: about 1 in 10 did that ended right after a
    write. See PyO3/pyo3-async-runtimes#40.
    """
    atexit.register(time.sleep, EXIT_GRACE_S)
