"""A private certificate authority and its certificates, for a small cluster without one."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from strata.coordinator.entry.private_files import make_private_folder, write_private
from strata.errors import TokenFileError

AUTHORITY_DAYS = 3_650
# Clocks of a cluster differ; a certificate that is not valid yet is refused.
EARLIER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the files are. Keys have mode 0600."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate: what clients trust."""
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """The authority's key: who has it can make certificates."""
        return self.folder / "ca-key.pem"

    @property
    def cert(self) -> Path:
        """The coordinator's certificate."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """The coordinator's key."""
        return self.folder / "server-key.pem"

    @property
    def client_cert(self) -> Path:
        """The certificate of clients, for mutual TLS."""
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        """The key of clients."""
        return self.folder / "client-key.pem"


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(folder: Path, *, hosts: Sequence[str], days: int, are_peers: bool = False) -> CertificateFiles:
    """Make the authority unless it is there, and new certificates of it; raise ValueError for a name that none can be.

    A key is written before its certificate, so a coordinator that reads in between keeps the pair before. The
    servers' certificate of ``are_peers`` is for both ends of a connection, as members of etcd need it.
    """
    names = [_name(host) for host in hosts]
    files = CertificateFiles(folder)
    try:
        make_private_folder(folder)
        return _make(files, hosts=hosts, names=names, days=days, are_peers=are_peers)
    except OSError as error:
        raise TokenFileError(str(error.filename or folder), error.strerror or str(error)) from error


def _make(
    files: CertificateFiles, *, hosts: Sequence[str], names: list[x509.GeneralName], days: int, are_peers: bool
) -> CertificateFiles:
    if not (files.ca.exists() or files.ca_key.exists()):
        _make_authority(files)
    authority = _load_authority(files)
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    for cert, key, usages, common in (
        (files.cert, files.key, [server, client] if are_peers else [server], hosts[0]),
        (files.client_cert, files.client_key, [client], "strata-client"),
    ):
        _issue(authority, cert, key, common=common, names=names, usages=usages, days=days)
    return files


def _make_authority(files: CertificateFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Strata private authority")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(files.ca_key, _pem(key))
    write_private(files.ca, certificate.public_bytes(serialization.Encoding.PEM))
    files.ca.chmod(0o644)


def _load_authority(files: CertificateFiles) -> _Authority:
    """Return the authority that is there, or raise TokenFileError.

    It is never replaced: all clients trust it, and its key may be elsewhere on purpose.
    """
    for path, other in ((files.ca, files.ca_key), (files.ca_key, files.ca)):
        if not path.exists():
            problem = f"it is not there, but {other} is: put it back, or use an empty directory for another authority"
            raise TokenFileError(str(path), problem)
    try:
        certificate = x509.load_pem_x509_certificate(files.ca.read_bytes())
    except ValueError as error:
        raise TokenFileError(str(files.ca), "it holds no certificate in PEM") from error
    try:
        key = serialization.load_pem_private_key(files.ca_key.read_bytes(), password=None)
    except TypeError as error:
        raise TokenFileError(str(files.ca_key), "it has a passphrase; put one without in its place") from error
    except ValueError as error:
        raise TokenFileError(str(files.ca_key), "it holds no private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TokenFileError(str(files.ca_key), "it is no key that 'strata tls init' made; use an empty directory")
    if key.public_key() != certificate.public_key():
        raise TokenFileError(str(files.ca_key), f"it is not the key of {files.ca}")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        ended = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        raise TokenFileError(str(files.ca), f"it ended on {ended}; use an empty directory for another authority")
    return _Authority(certificate, key)


def _issue(
    authority: _Authority,
    cert: Path,
    key_path: Path,
    *,
    common: str,
    names: list[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    until = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    write_private(key_path, _pem(key))
    write_private(cert, certificate.public_bytes(serialization.Encoding.PEM))
    cert.chmod(0o644)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not host or len(host) > 253 or not all(each.isalnum() or each in "-._*" for each in host) or not host.isascii():
        raise ValueError(f"--host {host!r}; use a name or an address, without a port")
    return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
