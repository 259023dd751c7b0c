"""One precedence, the names of the deployment files, and errors that say what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.config import load_settings, source_of
from strata.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems(**arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(**arguments)
    return str(caught.value)


def test_without_anything_set_there_are_defaults() -> None:
    settings = load_settings()
    assert settings.job_id == "default"
    assert settings.storage_backend == "local"
    assert settings.local_storage_path == Path("checkpoints")
    assert settings.rank is None


def test_arguments_beat_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (load_settings().job_id, source_of("job_id")) == ("default", "default")
    Path("strata.toml").write_text('job_id = "from-file"')
    assert (load_settings().job_id, source_of("job_id")) == ("from-file", "strata.toml")
    monkeypatch.setenv("JOB_ID", "from-environment")
    assert (load_settings().job_id, source_of("job_id")) == ("from-environment", "environment")
    assert load_settings(job_id="from-argument").job_id == "from-argument"
    assert source_of("job_id", {"job_id": "from-argument"}) == "argument"


def test_an_argument_of_none_and_an_empty_variable_count_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "")
    assert load_settings(rank=None).rank is None


def test_the_deployment_files_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "STORAGE_BACKEND": "s3",
        "CHECKPOINT_BUCKET": "my-training-checkpoints",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ACCESS_KEY_ID": "access",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "LOCAL_STORAGE_PATH": "/data/checkpoints",
        "COORDINATOR_URL": "strata-coordinator:50051",
        "WORKER_ID": "worker-3",
        "RANK": "3",
        "WORLD_SIZE": "8",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.storage_backend, settings.rank, settings.world_size) == ("s3", 3, 8)
    assert settings.aws_secret_access_key is not None
    assert settings.aws_secret_access_key.get_secret_value() == "secret"
    assert "secret" not in repr(settings).replace("aws_secret_access_key", "")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("STORAGE_BACKEND", "ftp", "one of local, s3, gcs, azure, memory"),
        ("RANK", "two", "a whole number from 0 to WORLD_SIZE - 1"),
        ("RANK", "-1", "a whole number from 0 to WORLD_SIZE - 1"),
        ("WORLD_SIZE", "0", "a whole number, 1 or more"),
        ("JOB_ID", "../escape", "1 to 128 characters"),
        ("WORKER_ID", "x" * 129, "1 to 128 characters"),
        ("COORDINATOR_URL", "ftp://host:1", "http://host:50051"),
        ("COORDINATOR_URL", "http://", "http://host:50051"),
        ("COORDINATOR_URL", "host:99999", "http://host:50051"),
        ("COORDINATOR_URL", "host:0", "http://host:50051"),
        ("COORDINATOR_URL", "http://host:50051/path", "http://host:50051"),
        ("AWS_ENDPOINT_URL", "localhost:9000", "a URL that begins with http:// or https://"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_was_expected(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    assert problems().startswith(f"{name}={value!r} (environment): expected {expected}")


@pytest.mark.parametrize(
    "url", ["http://host:50051", "grpc://host:1", "strata://10.0.0.1:2", "host:50051", "host", "[::1]:50051"]
)
def test_every_form_of_a_coordinator_address_is_accepted(url: str) -> None:
    assert load_settings(coordinator_url=url).coordinator_url == url


def test_all_wrong_values_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "two")
    told = problems(storage_backend="ftp")
    assert "RANK='two' (environment)" in told
    assert "storage_backend='ftp' (argument)" in told


def test_a_rank_outside_the_world_is_refused() -> None:
    assert problems(rank=8, world_size=8) == "RANK='8' (with WORLD_SIZE): expected a number below WORLD_SIZE=8"


@pytest.mark.parametrize(
    ("given", "missing", "expected"),
    [
        ("strata_tls_cert", "STRATA_TLS_KEY", "a path to a PEM file of a private key"),
        ("strata_tls_key", "STRATA_TLS_CERT", "a path to a PEM file of a certificate and those above it"),
    ],
)
def test_a_certificate_without_a_key_and_a_key_without_a_certificate_are_refused(
    given: str, missing: str, expected: str
) -> None:
    assert problems(**{given: "some.pem"}) == f"{missing} (with {given.upper()}): expected {expected}"


@pytest.mark.parametrize(
    ("given", "missing", "expected"),
    [
        ({}, "strata_oidc_audience", "a text of 1 or more characters"),
        ({"strata_oidc_audience": "strata"}, "strata_oidc_rules", "a list of tables with claim, matches, role"),
    ],
)
def test_an_issuer_without_an_audience_or_rules_lets_nobody_in_and_says_what_is_missing(
    given: dict[str, str], missing: str, expected: str
) -> None:
    settings = load_settings(strata_oidc_issuer="https://issuer.example", **given)
    with pytest.raises(ConfigError) as caught:
        _ = settings.oidc
    assert str(caught.value).startswith(f"{missing} (with STRATA_OIDC_ISSUER): expected {expected}")


def test_a_wrong_value_in_the_file_names_the_file() -> None:
    Path("strata.toml").write_text("world_size = -4")
    assert problems() == "world_size='-4' (strata.toml): expected a whole number, 1 or more"


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_name() -> None:
    Path("strata.toml").write_text('storage_backnd = "s3"')
    assert problems() == "storage_backnd (strata.toml): expected a known setting; did you mean storage_backend?"


def test_malformed_toml_names_file_line_and_column() -> None:
    Path("strata.toml").write_text('job_id = "x"\nrank = \n')
    assert problems().startswith("strata.toml (file): expected valid TOML in UTF-8, but Invalid value (at line 2")


def test_a_file_that_is_not_text_is_refused() -> None:
    Path("strata.toml").write_bytes(b"\xff\xfe\x00")
    assert "valid TOML in UTF-8" in problems()


def test_the_file_that_strata_config_names_is_read_and_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").write_text("rank = 1")
    monkeypatch.setenv("STRATA_CONFIG", "other.toml")
    assert (load_settings().rank, source_of("rank")) == (1, "other.toml")
    monkeypatch.setenv("STRATA_CONFIG", "absent.toml")
    assert problems() == "STRATA_CONFIG='absent.toml' (environment): expected the path of a file that exists"


def test_a_directory_in_place_of_the_file_is_a_clear_error() -> None:
    Path("strata.toml").mkdir()
    assert problems() == "strata.toml (file): expected a file that can be read, but Is a directory"


def test_a_secret_never_appears_in_an_error() -> None:
    Path("strata.toml").write_text('aws_secret_access_key = ["hunter2"]')
    assert problems() == "aws_secret_access_key (strata.toml): expected a secret key"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().rank = 1
