"""Storages by URL and from the settings: the two ways in which a program that does not choose gets one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from strata import storage
from strata.config import load_settings
from strata.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from pydantic import SecretStr

    from strata.config import Settings
    from strata.storage.protocol import Storage

EXPECTED = "/path, file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or memory://"


def open_storage(url: str, **options: Any) -> Storage:
    """Return the storage that ``url`` names; ``options`` go to its class, e.g. ``endpoint`` or ``retry``.

    A URL never carries credentials or other options: it ends up in logs and process lists. What an S3 URL
    leaves open comes from the settings (AWS_REGION, AWS_ENDPOINT_URL, ...).
    """
    if "://" not in url:
        if not url:
            raise _refused(url)
        return storage.LocalStorage(url, **options)
    split = urlsplit(url)
    if split.query or split.fragment or "@" in split.netloc:
        raise _refused(f"{split.scheme}://…")
    prefix = split.path.strip("/")
    match split.scheme:
        case "file" if split.netloc in ("", "localhost") and split.path:
            return storage.LocalStorage(unquote(split.path), **options)
        case "memory" if not split.netloc and not prefix:
            return storage.MemoryStorage(**options)
        case "s3" if split.netloc:
            return storage.S3Storage(split.netloc, prefix=prefix, **(_s3_options(load_settings()) | options))
        case "gs" if split.netloc:
            return storage.GCSStorage(split.netloc, prefix, **options)
        case "az" if split.netloc:
            return storage.AzureStorage(split.netloc, prefix, **options)
        case _:
            raise _refused(url)


def storage_from_env(**arguments: Any) -> Storage:
    """Return the storage that the settings name: STORAGE_BACKEND with its bucket, region or path.

    ``arguments`` are settings too, and come before the environment.
    """
    settings = load_settings(**arguments)
    match settings.storage_backend:
        case "local":
            return storage.LocalStorage(settings.local_storage_path)
        case "memory":
            return storage.MemoryStorage()
        case "s3":
            return storage.S3Storage(_bucket(settings), **_s3_options(settings))
        case "gcs":
            return storage.GCSStorage(_bucket(settings))
        case "azure":
            return storage.AzureStorage(_bucket(settings))


def _bucket(settings: Settings) -> str:
    if settings.checkpoint_bucket is None:
        expected = f"a bucket name, because STORAGE_BACKEND is {settings.storage_backend}"
        raise ConfigError([ConfigProblem("CHECKPOINT_BUCKET", "not set", None, expected)])
    return settings.checkpoint_bucket


def _s3_options(settings: Settings) -> dict[str, Any]:
    return {
        "region": settings.aws_region,
        "endpoint": settings.aws_endpoint_url,
        "access_key_id": _reveal(settings.aws_access_key_id),
        "secret_access_key": _reveal(settings.aws_secret_access_key),
        "session_token": _reveal(settings.aws_session_token),
    }


def _reveal(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None


def _refused(shown: str) -> ConfigError:
    return ConfigError([ConfigProblem("url", "argument", shown, f"{EXPECTED}, without credentials or options")])
