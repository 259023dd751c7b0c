from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from strata.errors import ConfigError
from strata.storage.object.aws_profile import find_profile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "planted-secret-value"


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id = usual\naws_secret_access_key = {SECRET}\n"
        f"[team]\naws_access_key_id = shared\naws_secret_access_key = {SECRET}\naws_session_token = t%20k\n"
    )
    (tmp_path / "config").write_text("[profile team]\nregion = eu-west-1\n[profile sso]\nsso_session = x\n")
    return tmp_path


def key_of(name: str | None) -> object:
    profile = find_profile(name)
    return profile and profile.provider()["access_key_id"]


def test_the_default_profile_serves_when_nothing_else_is_said() -> None:
    assert key_of(None) == "usual"


def test_the_environment_can_name_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    profile = find_profile(None)
    assert profile is not None
    assert profile.region == "eu-west-1"
    assert profile.provider() == {
        "access_key_id": "shared",
        "secret_access_key": SECRET,
        "token": "t%20k",
        "expires_at": None,
    }
    assert SECRET not in repr(profile)


def test_keys_and_roles_of_the_environment_come_before_its_profile_but_not_before_a_named_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert find_profile(None) is None
    assert key_of("team") == "shared"


def test_without_files_there_is_no_profile(files: Path) -> None:
    (files / "credentials").unlink()
    assert find_profile(None) is None


@pytest.mark.parametrize("name", ["nobody", "sso"])
def test_a_profile_that_gives_no_credentials_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"AWS_PROFILE='{name}'"):
        find_profile(name)


class ProfileNotFoundError(Exception):
    """The ProfileNotFound of botocore, which is not installed where these tests run."""


class Session:
    """As boto3's: it finds the credentials of a profile however they are to be got, or says that there is none."""

    region_name = None

    def __init__(self, *, profile_name: str) -> None:
        if profile_name == "nobody":
            raise ProfileNotFoundError(profile_name)
        self._profile = profile_name

    def get_credentials(self) -> SimpleNamespace | None:
        frozen = SimpleNamespace(access_key=f"key of {self._profile}", secret_key=SECRET, token="t")
        return SimpleNamespace(get_frozen_credentials=lambda: frozen) if self._profile == "sso" else None


@pytest.fixture
def boto3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    parts = {"boto3": {"Session": Session}, "boto3.session": {}}
    parts |= {
        "botocore": {},
        "botocore.credentials": {},
        "botocore.exceptions": {"ProfileNotFound": ProfileNotFoundError},
    }
    for name, content in parts.items():
        package, _, child = name.partition(".")
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        if child:
            setattr(sys.modules[package], child, module)
    sys.modules.pop("obstore.auth.boto3", None)
    yield
    sys.modules.pop("obstore.auth.boto3", None)


@pytest.mark.usefixtures("boto3")
def test_a_profile_without_keys_of_its_own_has_those_that_boto3_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "sso")
    assert key_of(None) == "key of sso"


@pytest.mark.usefixtures("boto3")
@pytest.mark.parametrize("name", ["nobody", "empty"])
def test_a_profile_that_boto3_has_no_credentials_for_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"AWS_PROFILE='{name}' \(argument\): expected a profile with aws_access_key_id"
    ):
        find_profile(name)


def test_a_broken_file_is_named_and_not_quoted(files: Path) -> None:
    (files / "credentials").write_text(f"aws_secret_access_key {SECRET}\n[")
    with pytest.raises(ConfigError, match="credentials") as caught:
        find_profile(None)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
