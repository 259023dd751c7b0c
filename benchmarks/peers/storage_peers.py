"""The contestants of benchmarks/storage.py: Strata and its peers, each moving one object once.

Each runs in a process of its own, which has the bytes in memory (or room for them), has imported what it
needs and has opened a connection before the clock starts. A write ends when the bytes are durable, as far as
the peer can say.
"""

from __future__ import annotations

import asyncio
import io
import mmap
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tools.measure import Cost, measure
from strata.storage import LocalStorage, S3Storage

if TYPE_CHECKING:
    from collections.abc import Callable

REGION = "us-east-1"
DD_BLOCK = 16 << 20


@dataclass(frozen=True)
class Place:
    """Where the object goes: a directory, or a bucket with its keys."""

    folder: str
    key: str
    endpoint: str = ""
    bucket: str = ""
    access_key: str = ""
    secret_key: str = ""


def local_strata_write(place: Place, size: int) -> Cost:
    """LocalStorage.write from page-aligned memory, such as a staging buffer."""
    return _strata_write(LocalStorage(place.folder), place, aligned(size))


def local_strata_write_unaligned(place: Place, size: int) -> Cost:
    """The same from memory as NumPy allocates it, so that it goes through the pool."""
    return _strata_write(LocalStorage(place.folder), place, aligned(size + 64)[64:])


def local_dd_write(place: Place, size: int) -> Cost:
    """Dd with O_DIRECT and fsync: the device, with nothing in the way."""
    block = min(DD_BLOCK, size)
    command = ["dd", "if=/dev/zero", f"of={_file(place)}", f"bs={block}", f"count={size // block}"]
    with measure() as cost:
        subprocess.run([*command, "oflag=direct", "conv=fsync"], check=True, stderr=subprocess.DEVNULL)
    return cost


def local_plain_write(place: Place, size: int) -> Cost:
    """open().write() and fsync, straight to the final name."""
    data = aligned(size)
    with measure() as cost, _file(place).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return cost


def local_strata_read(place: Place, size: int) -> Cost:
    """LocalStorage.read_into page-aligned memory, with nothing of the file in the page cache."""
    storage, target = LocalStorage(place.folder), aligned(size)
    drop_cache(_file(place))

    async def read() -> Cost:
        with measure() as cost:
            await storage.read_into(place.key, target)
        return cost

    return asyncio.run(read())


def local_dd_read(place: Place, size: int) -> Cost:
    """Dd with O_DIRECT."""
    drop_cache(_file(place))
    command = ["dd", f"if={_file(place)}", "of=/dev/null", f"bs={min(DD_BLOCK, size)}", "iflag=direct"]
    with measure() as cost:
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return cost


def local_plain_read(place: Place, size: int) -> Cost:
    """open().readinto() of memory that is there."""
    target = aligned(size)
    drop_cache(_file(place))
    with measure() as cost, _file(place).open("rb", buffering=0) as file:
        position = 0
        while count := file.readinto(target[position:]):
            position += count
    return cost


def s3_strata_write(place: Place, size: int) -> Cost:
    """S3Storage.write."""
    return _strata_write(_s3(place), place, aligned(size))


def s3_strata_read(place: Place, size: int) -> Cost:
    """S3Storage.read_into."""
    storage, target = _s3(place), aligned(size)

    async def read() -> Cost:
        await storage.exists("warm")
        with measure() as cost:
            await storage.read_into(place.key, target)
        return cost

    return asyncio.run(read())


def s3_obstore_write(place: Place, size: int) -> Cost:
    """obstore.put_async with its own part size and concurrency."""
    import obstore

    store, data = _obstore(place), aligned(size)

    async def write() -> Cost:
        await obstore.put_async(store, "warm", b"x")
        with measure() as cost:
            await obstore.put_async(store, place.key, data)
        return cost

    return asyncio.run(write())


def s3_obstore_read(place: Place, size: int) -> Cost:
    """obstore.get_async and all of its bytes."""
    import obstore

    store = _obstore(place)

    async def read() -> Cost:
        await obstore.head_async(store, place.key)
        with measure() as cost:
            received = await (await obstore.get_async(store, place.key)).bytes_async()
        assert len(received) == size
        return cost

    return asyncio.run(read())


def s3_boto3_write(place: Place, size: int) -> Cost:
    """boto3's managed transfer, as it comes."""
    client, source = _boto3(place), io.BytesIO(aligned(size))
    client.put_object(Bucket=place.bucket, Key="warm", Body=b"x")
    with measure() as cost:
        client.upload_fileobj(source, place.bucket, place.key)
    return cost


def s3_boto3_read(place: Place, size: int) -> Cost:
    """boto3's managed transfer into memory that is there."""
    client, target = _boto3(place), io.BytesIO(aligned(size))
    client.head_object(Bucket=place.bucket, Key=place.key)
    with measure() as cost:
        client.download_fileobj(place.bucket, place.key, target)
    return cost


def s3_awscrt_write(place: Place, size: int) -> Cost:
    """Amazon's C runtime through the transfer manager of boto3."""
    with _crt(place) as manager:
        source = io.BytesIO(aligned(size))
        manager.upload(io.BytesIO(b"x"), place.bucket, "warm").result()
        with measure() as cost:
            manager.upload(source, place.bucket, place.key).result()
        return cost


def s3_awscrt_read(place: Place, size: int) -> Cost:
    """The same, into memory that is there."""
    with _crt(place) as manager:
        target = io.BytesIO(aligned(size))
        manager.upload(io.BytesIO(b"x"), place.bucket, "warm").result()
        with measure() as cost:
            manager.download(place.bucket, place.key, target).result()
        return cost


CONTESTANTS: dict[str, dict[str, Callable[[Place, int], Cost]]] = {
    "local write": {
        "strata": local_strata_write,
        "strata, unaligned": local_strata_write_unaligned,
        "dd O_DIRECT": local_dd_write,
        "open().write()+fsync": local_plain_write,
    },
    "local read": {"strata": local_strata_read, "dd O_DIRECT": local_dd_read, "readinto()": local_plain_read},
    "s3 write": {
        "strata": s3_strata_write,
        "obstore": s3_obstore_write,
        "boto3": s3_boto3_write,
        "awscrt": s3_awscrt_write,
    },
    "s3 read": {
        "strata": s3_strata_read,
        "obstore": s3_obstore_read,
        "boto3": s3_boto3_read,
        "awscrt": s3_awscrt_read,
    },
}


def aligned(size: int) -> memoryview:
    """Memory that begins on a page, is in use already, and does not compress."""
    memory = mmap.mmap(-1, max(size, 1))
    np.frombuffer(memory, np.uint8)[:] = np.frombuffer(np.random.default_rng(size).bytes(size), np.uint8)
    return memoryview(memory)


def drop_cache(path: Path) -> None:
    """Take a file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def _strata_write(storage: LocalStorage | S3Storage, place: Place, data: memoryview) -> Cost:
    async def write() -> Cost:
        await storage.write("warm", b"x")
        with measure() as cost:
            await storage.write(place.key, data)
        return cost

    return asyncio.run(write())


def _file(place: Place) -> Path:
    return Path(place.folder, place.key)


def _s3(place: Place) -> S3Storage:
    return S3Storage(
        place.bucket,
        REGION,
        place.endpoint,
        access_key_id=place.access_key,
        secret_access_key=place.secret_key,
    )


def _obstore(place: Place) -> Any:
    from obstore.store import S3Store

    return S3Store(
        place.bucket,
        region=REGION,
        endpoint=place.endpoint,
        access_key_id=place.access_key,
        secret_access_key=place.secret_key,
        client_options={"allow_http": True},
    )


def _boto3(place: Place) -> Any:
    import boto3

    return boto3.client(
        "s3",
        region_name=REGION,
        endpoint_url=place.endpoint,
        aws_access_key_id=place.access_key,
        aws_secret_access_key=place.secret_key,
    )


def _crt(place: Place) -> Any:
    import boto3
    from s3transfer.crt import (
        BotocoreCRTCredentialsWrapper,
        BotocoreCRTRequestSerializer,
        CRTTransferManager,
        create_s3_crt_client,
    )

    session = boto3.Session(place.access_key, place.secret_key, region_name=REGION)
    wrapper = BotocoreCRTCredentialsWrapper(session.get_credentials())
    client = create_s3_crt_client(REGION, wrapper.to_crt_credentials_provider(), use_ssl=False)
    options = {"region_name": REGION, "endpoint_url": place.endpoint}
    return CRTTransferManager(client, BotocoreCRTRequestSerializer(session._session, options))
