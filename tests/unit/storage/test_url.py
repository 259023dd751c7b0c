from __future__ import annotations

import os
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING

import pytest

from strata import storage
from strata.errors import ConfigError
from strata.storage import (
    AzureStorage,
    GCSStorage,
    LocalStorage,
    MemoryStorage,
    S3Storage,
    open_storage,
    storage_from_env,
)

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "planted-secret-value"


@pytest.fixture(autouse=True)
def _no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("/data/ckpt", LocalStorage, "LocalStorage('/data/ckpt')"),
        ("file:///data/my%20ckpt", LocalStorage, "LocalStorage('/data/my ckpt')"),
        ("memory://", MemoryStorage, "MemoryStorage(0 objects)"),
        ("s3://bucket", S3Storage, "S3Storage('s3://bucket', prefix='')"),
        ("s3://bucket/a/b/", S3Storage, "S3Storage('s3://bucket', prefix='a/b')"),
        ("gs://bucket/a", GCSStorage, "GCSStorage('gs://bucket', prefix='a')"),
    ],
)
def test_a_url_opens_the_storage_that_it_names(url: str, kind: type, shown: str) -> None:
    opened = open_storage(url)
    assert type(opened) is kind
    assert repr(opened) == shown


def test_an_azure_url_names_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    opened = open_storage("az://container/a")
    assert type(opened) is AzureStorage
    assert repr(opened) == "AzureStorage('az://container', prefix='a')"


def test_a_relative_path_is_meant_from_here(tmp_path: Path) -> None:
    assert repr(open_storage("ckpt")) == f"LocalStorage('{tmp_path / 'ckpt'}')"


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "s3://", "s3:///a", "file://host/x", "memory://named", "gs://", "az:///x", "file://"],
)
def test_what_is_no_storage_url_is_refused_with_those_that_are(url: str) -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        open_storage(url)


@pytest.mark.parametrize(
    "url", [f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?secret={SECRET}", f"gs://bucket/x#{SECRET}"]
)
def test_a_url_with_credentials_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="without credentials") as caught:
        open_storage(url)
    assert SECRET not in str(caught.value)


def test_the_default_storage_is_local(tmp_path: Path) -> None:
    assert repr(storage_from_env()) == f"LocalStorage('{tmp_path / 'checkpoints'}')"


def test_the_seeds_variables_choose_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_BACKEND", "local")
    monkeypatch.setenv("LOCAL_STORAGE_PATH", "/data/x")
    assert repr(storage_from_env()) == "LocalStorage('/data/x')"
    monkeypatch.setenv("STORAGE_BACKEND", "s3")
    monkeypatch.setenv("CHECKPOINT_BUCKET", "ckpt")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    opened = storage_from_env()
    assert repr(opened) == "S3Storage('s3://ckpt', prefix='')"
    assert SECRET not in repr(vars(opened))
    assert opened._store.config["region"] == "eu-central-1"
    assert repr(storage_from_env(storage_backend="gcs")) == "GCSStorage('gs://ckpt', prefix='')"
    assert repr(storage_from_env(storage_backend="memory")) == "MemoryStorage(0 objects)"


@pytest.mark.parametrize("backend", ["s3", "gcs", "azure"])
def test_an_object_store_without_a_bucket_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("STORAGE_BACKEND", backend)
    with pytest.raises(ConfigError, match="CHECKPOINT_BUCKET"):
        storage_from_env()


def test_settings_that_a_store_cannot_use_are_named_and_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        AzureStorage("container")
    with pytest.raises(ConfigError, match="az://container"):
        AzureStorage("container", account="account", account_key=f"{SECRET}*not*base64")
    with pytest.raises(ConfigError, match="a service account file that exists"):
        GCSStorage("bucket", service_account=str(tmp_path / "nothing"))
    (tmp_path / "wrong.json").write_text(f'{{"private_key": "{SECRET}"}}')
    with pytest.raises(ConfigError, match="gs://bucket") as caught:
        GCSStorage("bucket", service_account=str(tmp_path / "wrong.json"))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_every_public_name_is_there_and_no_other() -> None:
    for name in storage.__all__:
        assert getattr(storage, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        storage.nothing  # noqa: B018 - it raises


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import strata.storage", ("obstore", "numpy", "pydantic")),
        ("from strata.storage import MemoryStorage, Storage", ("obstore", "numpy")),
        ("from strata.storage import LocalStorage", ("obstore",)),
    ],
)
def test_what_is_not_used_is_not_loaded(statement: str, absent: tuple[str, ...]) -> None:
    script = f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(("name", "extra"), [("S3Storage", "s3"), ("GCSStorage", "gcs"), ("AzureStorage", "azure")])
def test_without_obstore_the_extra_to_install_is_named(name: str, extra: str) -> None:
    script = f"import sys; sys.modules['obstore'] = None\nfrom strata.storage import {name}"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"MissingExtraError: {name} needs an optional library" in result.stderr
    assert f"strata-runtime[{extra}]" in result.stderr
