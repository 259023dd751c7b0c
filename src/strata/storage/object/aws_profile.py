"""AWS profiles: credentials and region from the files that the AWS command line keeps.

obstore knows the environment and roles, but not these files. Static keys are read here; a profile that needs
more (SSO, an assumed role, a credential process) is left to boto3, if that is installed.
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3CredentialProvider

# Each of these says that credentials come from the environment or from a role; the files are then not read.
_ELSEWHERE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile says; the secrets are inside ``provider`` and never shown."""

    provider: S3CredentialProvider
    region: str | None


def find_profile(name: str | None) -> Profile | None:
    """Return the profile to use: the named one, or what AWS_PROFILE or "default" say if nothing else does."""
    chosen, source = name, "argument"
    if chosen is None:
        if any(os.environ.get(variable) for variable in _ELSEWHERE):
            return None
        chosen, source = os.environ.get("AWS_PROFILE"), "environment"
    sections = _read_sections(chosen or "default")
    key, secret = sections.get("aws_access_key_id"), sections.get("aws_secret_access_key")
    if key and secret:
        return Profile(fixed_credentials(key, secret, sections.get("aws_session_token")), sections.get("region"))
    if chosen is None:
        return None
    return Profile(_ask_boto3(chosen, source), sections.get("region"))


def fixed_credentials(key: str, secret: str, token: str | None) -> S3CredentialProvider:
    """Return a provider of these credentials alone; nothing from the environment is mixed into them."""
    credential: S3Credential = {"access_key_id": key, "secret_access_key": secret, "expires_at": None}
    if token:
        credential["token"] = token
    return lambda: credential


def _read_sections(name: str) -> dict[str, str]:
    config = _read_section("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    return config | _read_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)


def _read_section(variable: str, file: str, section: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or Path("~/.aws", file)).expanduser()
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError):
        # Not chained: the parser's message quotes the line that it stumbled over, and that may be a secret.
        raise ConfigError(
            [ConfigProblem(variable, str(path), None, "an AWS file of [sections] with name = value lines")]
        ) from None
    return dict(parser[section]) if parser.has_section(section) else {}


def _ask_boto3(name: str, source: str) -> S3CredentialProvider:
    expected = "a profile with aws_access_key_id and aws_secret_access_key, or boto3 for SSO and assumed roles"
    problem = ConfigProblem("AWS_PROFILE", source, name, expected)
    try:
        import boto3
        from botocore.exceptions import ProfileNotFound
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as error:
        raise ConfigError([problem]) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except (ProfileNotFound, ValueError) as error:
        raise ConfigError([problem]) from error
