"""What a client proves itself with, and what it trusts: the token, the certificate, the authorities."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from pydantic import SecretStr

from strata.config import Settings, load_settings
from strata.errors import TokenFileError

# Tokens of an identity provider have a few kilobytes; headers of more than 8 are refused by most servers.
MAX_TOKEN_BYTES = 8 << 10


@dataclass(frozen=True, slots=True)
class Credentials:
    """Read from the settings; the files are read when a connection is opened, so that a new one is taken up.

    The token is in no repr, and in no error: of one that cannot be used only the source is named.
    """

    secret: SecretStr | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    is_insecure: bool = False
    """Whether the token may be sent without TLS to another machine."""

    @classmethod
    def load(cls, settings: Settings | None = None) -> Credentials:
        """Return what the settings say."""
        given = settings or load_settings()
        return cls(
            given.strata_token,
            given.strata_token_file,
            _at_home(given.strata_tls_ca),
            _at_home(given.strata_tls_cert),
            _at_home(given.strata_tls_key),
            given.strata_insecure,
        )

    def token(self) -> str | None:
        """Return the token as it is now; None if there is none."""
        if self.secret is not None:
            return _checked(self.secret.get_secret_value(), "STRATA_TOKEN")
        if self.token_file is None:
            return None
        return _checked(_read(self.token_file).decode("ascii", "replace").strip(), str(self.token_file))

    def ssl_context(self) -> ssl.SSLContext:
        """Return how Python's sockets check the coordinator and prove this client to it."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # an SSLError too: a file that is no certificate
            raise TokenFileError(str(self.ca), describe_pem_problem(error)) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, refuse_passphrase)
            except OSError as error:
                raise TokenFileError(f"{self.cert} with {self.key}", describe_pem_problem(error)) from error
        return context

    def grpc_credentials(self) -> grpc.ChannelCredentials:
        """Return the same for gRPC, which would trust a list of its own."""
        # Of files that cannot be used gRPC says nothing but that nobody answers.
        self.ssl_context()
        trusted = self.ca or _system_authorities()
        return grpc.ssl_channel_credentials(
            None if trusted is None else _read(trusted),
            None if self.key is None else _read(self.key),
            None if self.cert is None else _read(self.cert),
        )


def refuse_passphrase() -> str:
    """Stand in for a key's passphrase: a program that runs unattended must not ask a terminal for it, and wait."""
    raise OSError("the key has a passphrase; use one without, in a file with mode 0600")


def describe_pem_problem(error: OSError) -> str:
    """Say in words why files of certificates and keys cannot be used."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    # The last one is what OpenSSL says of a key of another kind, such as RSA and not EC.
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
        return "the key is of another certificate"
    if error.reason in (None, "NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE"):
        return "it holds no certificate or key in PEM"
    return error.reason.lower().replace("_", " ")


def _system_authorities() -> Path | None:
    paths = ssl.get_default_verify_paths()
    found = Path(paths.cafile or paths.openssl_cafile)
    return found if found.is_file() else None


def _at_home(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser()


def _read(path: Path) -> bytes:
    try:
        with path.expanduser().open("rb") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise TokenFileError(str(path), error.strerror or str(error)) from error


def _checked(token: str, source: str) -> str:
    """Refuse what cannot be a header: a line break in it would begin another one."""
    if not token or len(token) > MAX_TOKEN_BYTES or not all("!" <= character <= "~" for character in token):
        problem = f"it holds no token: 1 to {MAX_TOKEN_BYTES} printable ASCII characters without spaces"
        raise TokenFileError(source, problem)
    return token
