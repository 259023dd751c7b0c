"""The one place where settings come from: arguments, then environment, then strata.toml, then defaults.

The environment names are those of the deployment files (STORAGE_BACKEND, COORDINATOR_URL, RANK, ...);
``strata.toml`` uses the same names in lower case. A value that cannot be used is a ConfigError that names
the setting, where it was set, the value, and what was expected. Secrets never appear in one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from strata.address import parse_endpoints
from strata.errors import ConfigError, ConfigProblem, InvalidIdError

DEFAULT_FILE = "strata.toml"
FILE_VARIABLE = "STRATA_CONFIG"

StorageBackend = Literal["local", "s3", "gcs", "azure", "memory"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _coordinator_url(value: str) -> str:
    parse_endpoints(value)
    return value


def _setting(default: Any, description: str, *, expected: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"expected": expected}, **limits)


class OidcRule(BaseModel):
    """Which tokens of an issuer get in, and as what: the first rule counts whose claim matches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claim: str = "sub"
    """The claim to look at; kubernetes.io/namespace is the claim namespace in the claim kubernetes.io."""
    matches: str
    """A pattern of its value, as of a shell."""
    role: Literal["viewer", "worker", "operator", "admin"]
    tenant: str | None = None
    tenant_claim: str | None = None
    """The claim that names the tenant, instead of one for all."""
    jobs: str = "*"


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Whose tokens get in beside Strata's own."""

    issuer: str
    audience: str
    rules: tuple[OidcRule, ...]
    jwks_url: str | None = None
    ca: Path | None = None
    token_file: Path | None = None


class Settings(BaseSettings):
    """All settings, checked and immutable. Use :func:`load_settings` to get one."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    job_id: Annotated[str, AfterValidator(partial(InvalidIdError.check, "job id"))] = _setting(
        "default",
        "The id of the training run.",
        expected="1 to 128 characters of A-Z a-z 0-9 . _ - that do not start with a dot",
    )
    worker_id: Annotated[str, AfterValidator(partial(InvalidIdError.check, "worker id"))] | None = _setting(
        None,
        "The stable id of this process in its job; it stays the same after a restart.",
        expected="1 to 128 characters of A-Z a-z 0-9 . _ - that do not start with a dot",
    )
    rank: int | None = _setting(
        None, "The rank of this worker in the job.", expected="a whole number from 0 to WORLD_SIZE - 1", ge=0
    )
    world_size: int | None = _setting(None, "How many workers the job has.", expected="a whole number, 1 or more", ge=1)
    coordinator_url: Annotated[str, AfterValidator(_coordinator_url)] | None = _setting(
        None,
        "The address of the coordinator; with several, separated by commas, the client finds the leader.",
        expected="http://host:50051, grpc://host:50051, strata://host:50051 or host:50051; https, grpcs, stratas: TLS",
    )
    strata_token: SecretStr | None = _setting(
        None, "The token with which this process connects to the coordinator; never shown.", expected="a token"
    )
    strata_token_file: Path | None = _setting(
        None,
        "A file that holds the token instead; it is read again for each connection.",
        expected="a path to a file that holds one token",
    )
    strata_tls_ca: Path | None = _setting(
        None,
        "The certificates that clients trust, instead of those of the system.",
        expected="a path to a PEM file of certificates",
    )
    strata_tls_cert: Path | None = _setting(
        None,
        "The certificate of this process: of a coordinator, or of a client for mutual TLS.",
        expected="a path to a PEM file of a certificate and those above it",
    )
    strata_tls_key: Path | None = _setting(
        None, "The private key of that certificate.", expected="a path to a PEM file of a private key"
    )
    strata_tls_client_ca: Path | None = _setting(
        None,
        "The authorities that must have signed the certificates of clients (mutual TLS).",
        expected="a path to a PEM file of certificates",
    )
    strata_admin_token_file: Path | None = _setting(
        None,
        "The file of the administrator's token; the coordinator creates it if it does not exist.",
        expected="a path to a file",
    )
    strata_oidc_issuer: str | None = _setting(
        None,
        "The OIDC issuer whose tokens the coordinator accepts, in addition to its own.",
        expected="the issuer as its tokens name it, a URL",
        min_length=1,
    )
    strata_oidc_audience: str | None = _setting(
        None,
        "The audience that a token of that issuer must have.",
        expected="a text of 1 or more characters",
        min_length=1,
    )
    strata_oidc_rules: tuple[OidcRule, ...] = _setting(
        (),
        "The tenant and role of such a token: the first rule whose claim matches applies.",
        expected="a list of tables with claim, matches, role, tenant or tenant_claim, jobs; JSON in the environment",
    )
    strata_oidc_jwks_url: str | None = _setting(
        None, "The URL of the issuer's keys, if its discovery document does not name it.", expected="a URL"
    )
    strata_oidc_ca: Path | None = _setting(
        None, "The certificates to trust for TLS with the issuer.", expected="a path to a PEM file of certificates"
    )
    strata_oidc_token_file: Path | None = _setting(
        None, "A token to send to the issuer, as Kubernetes requires one.", expected="a path to a file"
    )
    strata_insecure: bool = _setting(
        False,  # noqa: FBT003 - the default of a field
        "Whether to allow connections to other machines without TLS or tokens.",
        expected="true or false",
    )
    storage_backend: StorageBackend = _setting(
        "local",
        "The kind of store for checkpoints.",
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
        Path("~/.cache/strata/data"),
        "The directory in which remote and decompressed data is cached.",
        expected="a path to a directory",
    )
    data_cache_bytes: int = _setting(
        16 << 30, "The size limit of that cache, in bytes.", expected="a whole number, 1 or more", ge=1
    )
    jobs_path: Path = _setting(
        Path("~/.local/state/strata/jobs"),
        "Where jobs keep logs, stacks and the journal of a standalone coordinator.",
        expected="a path to a directory",
    )
    job_folder: Path | None = _setting(
        None, "The folder of this run; strata run sets it for its workers.", expected="a path to a directory"
    )
    strata_log_level: LogLevel | None = _setting(
        None,
        "The least severe level that Strata logs; default: info under strata run, otherwise warning.",
        expected=f"one of {', '.join(get_args(LogLevel))}",
    )
    strata_watchdog_s: float | None = _setting(
        None,
        "How many seconds a step may take before a worker counts as hung; 0 turns the watchdog off.",
        expected="a number of seconds, 0 or more",
        ge=0,
    )
    strata_log_to: str | None = _setting(
        None,
        "Where rank 0 writes the metrics of its steps.",
        expected="tensorboard:DIRECTORY, wandb or wandb:PROJECT",
        pattern=r"^(tensorboard:.+|wandb(:.+)?)$",
    )
    strata_seed: int | None = _setting(
        None,
        "Seeds the random number generators of workers when a job begins; without it the script does.",
        expected="a whole number, 0 or more",
        ge=0,
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
    def _certificate_has_a_key(self) -> Settings:
        if (self.strata_tls_cert is None) != (self.strata_tls_key is None):
            missing, given = "STRATA_TLS_KEY", "STRATA_TLS_CERT"
            if self.strata_tls_cert is None:
                missing, given = given, missing
            raise ConfigError([ConfigProblem(missing, f"with {given}", None, expected_of(missing.lower()))])
        return self

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

    @property
    def oidc(self) -> OidcSettings | None:
        """The issuer whose tokens get in, if there is one."""
        if self.strata_oidc_issuer is None:
            return None
        if self.strata_oidc_audience is None or not self.strata_oidc_rules:
            missing = "strata_oidc_rules" if self.strata_oidc_audience else "strata_oidc_audience"
            raise ConfigError([ConfigProblem(missing, "with STRATA_OIDC_ISSUER", None, expected_of(missing))])
        return OidcSettings(
            self.strata_oidc_issuer,
            self.strata_oidc_audience,
            self.strata_oidc_rules,
            self.strata_oidc_jwks_url,
            self.strata_oidc_ca,
            self.strata_oidc_token_file,
        )

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
    path = Path(chosen or DEFAULT_FILE).expanduser()
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
