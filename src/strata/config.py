"""The one place where settings come from: arguments, then environment, then strata.toml, then defaults.

The environment names are those of the deployment files (STORAGE_BACKEND, COORDINATOR_URL, RANK, ...);
``strata.toml`` uses the same names in lower case. A value that cannot be used is a ConfigError that names
the setting, where it was set, the value, and what was expected. Secrets never appear in one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from strata import ids
from strata.errors import ConfigError, ConfigProblem

DEFAULT_FILE = "strata.toml"
FILE_VARIABLE = "STRATA_CONFIG"
COORDINATOR_SCHEMES = ("http", "grpc", "strata")

StorageBackend = Literal["local", "s3", "gcs", "azure", "memory"]


def _coordinator_url(value: str) -> str:
    split = urlsplit(value if "://" in value else f"grpc://{value}")
    if split.scheme not in COORDINATOR_SCHEMES or not split.hostname or split.path not in ("", "/"):
        raise ValueError("not a coordinator address")
    if split.port == 0:  # .port itself refuses what is not a number up to 65535
        raise ValueError("port 0 cannot be connected to")
    return value


def _setting(default: Any, description: str, *, expected: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"expected": expected}, **limits)


class Settings(BaseSettings):
    """All settings, checked and immutable. Use :func:`load_settings` to get one."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    job_id: Annotated[str, AfterValidator(ids.job_id)] = _setting(
        "default",
        "The training run that everything else belongs to.",
        expected="1 to 128 characters of A-Z a-z 0-9 . _ - that do not start with a dot",
    )
    worker_id: Annotated[str, AfterValidator(ids.worker_id)] | None = _setting(
        None,
        "The stable name of this process in its job; it survives restarts.",
        expected="1 to 128 characters of A-Z a-z 0-9 . _ - that do not start with a dot",
    )
    rank: int | None = _setting(
        None, "This worker's number in the job.", expected="a whole number from 0 to WORLD_SIZE - 1", ge=0
    )
    world_size: int | None = _setting(None, "How many workers the job has.", expected="a whole number, 1 or more", ge=1)
    coordinator_url: Annotated[str, AfterValidator(_coordinator_url)] | None = _setting(
        None,
        "Where the coordinator listens.",
        expected="http://host:50051, grpc://host:50051, strata://host:50051 or host:50051",
    )
    storage_backend: StorageBackend = _setting(
        "local",
        "The kind of store that checkpoints go to.",
        expected=f"one of {', '.join(get_args(StorageBackend))}",
    )
    local_storage_path: Path = _setting(
        Path("checkpoints"), "The directory of the local store.", expected="a path to a directory"
    )
    checkpoint_bucket: str | None = _setting(
        None,
        "The bucket or container of an object store.",
        expected="a bucket name of 1 or more characters",
        min_length=1,
    )
    data_cache_path: Path = _setting(
        Path("~/.cache/strata/data"), "Where remote and decompressed data is cached.", expected="a path to a directory"
    )
    data_cache_bytes: int = _setting(
        16 << 30, "How many bytes that cache may have.", expected="a whole number, 1 or more", ge=1
    )
    aws_region: str | None = _setting(
        None, "The region of the bucket.", expected="a region name such as us-east-1", min_length=1
    )
    aws_endpoint_url: Annotated[str, Field(pattern=r"^https?://[^/]+")] | None = _setting(
        None, "The address of an S3-compatible server.", expected="a URL that begins with http:// or https://"
    )
    aws_access_key_id: SecretStr | None = _setting(
        None, "The access key; leave unset to use a profile or role.", expected="an access key"
    )
    aws_secret_access_key: SecretStr | None = _setting(
        None, "The secret of that key; never shown.", expected="a secret key"
    )
    aws_session_token: SecretStr | None = _setting(
        None, "The token of temporary credentials; never shown.", expected="a session token"
    )

    @model_validator(mode="after")
    def _rank_is_in_the_world(self) -> Settings:
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            raise ConfigError(
                [
                    ConfigProblem(
                        "RANK",
                        "with WORLD_SIZE",
                        str(self.rank),
                        f"a number below WORLD_SIZE={self.world_size}",
                    )
                ]
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The one precedence; ``.env`` files are for Docker Compose, which reads them itself."""
        del dotenv_settings, file_secret_settings
        _, values = _read_file()
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=values)


def load_settings(**arguments: Any) -> Settings:
    """Return the settings in force, or raise ConfigError naming all that is wrong with them.

    An argument of None means "not given", so that a command can pass on its options as they are.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise ConfigError([_problem(detail, given) for detail in error.errors()]) from None


def source_of(name: str, arguments: dict[str, Any] | None = None) -> str:
    """Say in words where the setting ``name`` gets its value from."""
    if arguments and name in arguments:
        return "argument"
    if os.environ.get(name.upper()):
        return "environment"
    path, values = _read_file()
    return str(path) if name in values else "default"


def expected_of(name: str) -> str:
    """Say in words what the setting ``name`` may be."""
    extra = Settings.model_fields[name].json_schema_extra
    assert isinstance(extra, dict), name
    return str(extra["expected"])


def _problem(detail: Any, arguments: dict[str, Any]) -> ConfigProblem:
    name = str(detail["loc"][0])
    source = source_of(name, arguments)
    if name not in Settings.model_fields:
        close = difflib.get_close_matches(name, Settings.model_fields, n=1)
        return ConfigProblem(
            name, source, None, f"a known setting; did you mean {close[0]}?" if close else "a known setting"
        )
    shown = name.upper() if source == "environment" else name
    secret = "SecretStr" in str(Settings.model_fields[name].annotation)
    return ConfigProblem(shown, source, None if secret else str(detail["input"]), expected_of(name))


def _read_file() -> tuple[Path, dict[str, Any]]:
    chosen = os.environ.get(FILE_VARIABLE)
    path = Path(chosen or DEFAULT_FILE)
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if chosen:
            raise ConfigError(
                [ConfigProblem(FILE_VARIABLE, "environment", chosen, "the path of a file that exists")]
            ) from None
        return path, {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([ConfigProblem(str(path), "file", None, f"valid TOML in UTF-8, but {error}")]) from error
    except OSError as error:
        raise ConfigError(
            [ConfigProblem(str(path), "file", None, f"a file that can be read, but {error.strerror}")]
        ) from error
