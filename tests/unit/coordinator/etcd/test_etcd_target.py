"""Where etcd is, as users write it: a URL without secrets, and the rest from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.coordinator.etcd.target import parse_target
from strata.coordinator.journal import check_state
from strata.errors import TokenFileError


def test_a_url_names_endpoints_and_a_prefix() -> None:
    target = parse_target("etcd://a:1,b,[::1]:3/team/strata/", {})
    assert target.endpoints == ("a:1", "b:2379", "[::1]:3")
    assert (target.prefix, target.is_secure) == ("team/strata", False)
    assert str(target) == "etcd://a:1,b:2379,[::1]:3/team/strata"
    assert parse_target("etcds://a/p", {}).is_secure


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("etcd://a:2379", "use etcd://host:2379,host:2379/prefix"),
        ("etcd://a:2379/", "use etcd://host:2379,host:2379/prefix"),
        ("etcd:///prefix", "names no host"),
        ("etcd://a,/prefix", "names no host"),
        ("etcd://a:x/prefix", "use etcd://host:2379"),
        ("etcd://user:secret@a/prefix", "a password does not belong into a URL"),
        ("etcd://::1:2379/prefix", r"an IPv6 address needs brackets, such as \[::1\]:2379"),
        ("etcd://[::1:2379/prefix", "state 'etcd://.*use etcd://host:2379"),
        ("etcd://a:0/prefix", "use etcd://host:2379"),
        ("etcd://a/pre\nfix", "use etcd://host:2379,host:2379/prefix"),
        ("etcd://a/prefix#x", "use etcd://host:2379,host:2379/prefix"),
        ("etcd://a/prefix?x=1", "use etcd://host:2379,host:2379/prefix"),
    ],
)
def test_a_url_that_cannot_be_used_says_what_to_write(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_target(url, {})


@pytest.mark.parametrize(
    "url",
    [
        "etcd://user:hunter2@a:2379",
        "etcd://user:hunter2@[::1/p",
        "etcds://user:hunter2@a/p?x=1",
        "ETCD://user:hunter2@a/p",
        "redis://user:hunter2@a/1",
        "sqlite://user:hunter2@a/p",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r"password|\.\.\.@") as caught:
        check_state(url)
    assert "hunter2" not in str(caught.value)


def test_secrets_come_from_files_and_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    environment = {"STRATA_ETCD_USER": "strata", "STRATA_ETCD_PASSWORD_FILE": str(tmp_path / "password")}
    target = parse_target("etcd://a/p", environment)
    assert (target.user, target.password) == ("strata", "hunter2")
    assert "hunter2" not in repr(target) + str(target)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("STRATA_ETCD_USER", "set both STRATA_ETCD_USER and STRATA_ETCD_PASSWORD_FILE"),
        ("STRATA_ETCD_CERT", "set both STRATA_ETCD_CERT and STRATA_ETCD_KEY"),
    ],
)
def test_half_of_a_pair_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=problem):
        parse_target("etcd://a/p", {name: str(tmp_path / "file")})


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="STRATA_ETCD_CA='/nowhere/ca' cannot be read"):
        parse_target("etcds://a/p", {"STRATA_ETCD_CA": "/nowhere/ca"})


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_a_passwords_line_is_no_part_of_it(tmp_path: Path, end: str) -> None:
    (tmp_path / "password").write_bytes(f"hunter 2{end}".encode())
    environment = {"STRATA_ETCD_USER": "strata", "STRATA_ETCD_PASSWORD_FILE": str(tmp_path / "password")}
    assert parse_target("etcd://a/p", environment).password == "hunter 2"


def test_a_password_that_is_no_text_is_named_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"hunter2\xff")
    environment = {"STRATA_ETCD_USER": "strata", "STRATA_ETCD_PASSWORD_FILE": str(tmp_path / "password")}
    with pytest.raises(ValueError, match="STRATA_ETCD_PASSWORD_FILE holds no text") as caught:
        parse_target("etcd://a/p", environment)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_certificates_of_etcd_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("junk")
    with pytest.raises(TokenFileError, match="ca cannot be used: it holds no certificate or key in PEM"):
        parse_target("etcds://a/p", {"STRATA_ETCD_CA": str(tmp_path / "ca")})
