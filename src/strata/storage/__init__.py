"""One Storage protocol and its backends: local disk, object stores, memory.

Everything that Strata keeps goes through here, and nothing here knows what it keeps.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.storage.local.local_storage import LocalStorage
    from strata.storage.memory import MemoryStorage
    from strata.storage.object.azure import AzureStorage
    from strata.storage.object.gcs import GCSStorage
    from strata.storage.object.object_storage import ObjectStorage
    from strata.storage.object.retry import RetryPolicy
    from strata.storage.object.s3 import S3Storage
    from strata.storage.protocol import ObjectInfo, ObjectWriter, Storage
    from strata.storage.url import open_storage, storage_from_env

__all__ = [
    "AzureStorage",
    "GCSStorage",
    "LocalStorage",
    "MemoryStorage",
    "ObjectInfo",
    "ObjectStorage",
    "ObjectWriter",
    "RetryPolicy",
    "S3Storage",
    "Storage",
    "open_storage",
    "storage_from_env",
]

# Resolved on first use: importing this package loads neither obstore nor NumPy.
_HOMES = {
    "AzureStorage": "object.azure",
    "GCSStorage": "object.gcs",
    "LocalStorage": "local.local_storage",
    "MemoryStorage": "memory",
    "ObjectInfo": "protocol",
    "ObjectStorage": "object.object_storage",
    "ObjectWriter": "protocol",
    "RetryPolicy": "object.retry",
    "S3Storage": "object.s3",
    "Storage": "protocol",
    "open_storage": "url",
    "storage_from_env": "url",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
