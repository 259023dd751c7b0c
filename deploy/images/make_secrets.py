"""Makes the secrets of docker-compose.prod.yml; called again it keeps tokens and keys, and renews the certificates.

    python3 make_secrets.py FOLDER

FOLDER is the one that Compose takes secrets from. Each file belongs to the user of the container that reads it, and to
nobody else: STRATA_USER (user:group) is that of Strata's own containers, and etcd and the S3 server run as root.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

from strata.coordinator.entry.certificates import make_certificates
from strata.coordinator.entry.private_files import write_private
from strata.coordinator.entry.secret_tokens import make_token

COORDINATORS = ("coordinator-1", "coordinator-2", "coordinator-3")
# The last one is for the health check inside the container.
ETCD_NODES = ("etcd-1", "etcd-2", "etcd-3", "127.0.0.1")
DAYS = 365
STORAGE = """\
# Where the workers' checkpoints go: the S3 server of the profile local-s3. This is a strata.toml. For a bucket of your
# own set its region and keys here, or leave the keys out where the machine has a role.
aws_region = "us-east-1"
aws_endpoint_url = "http://s3:8333"
aws_access_key_id = "{key_id}"
aws_secret_access_key = "{secret}"
"""


def main() -> int:
    """Run the command line."""
    folder = Path(sys.argv[1])
    user_id = int(os.environ.get("STRATA_USER", "10001:0").partition(":")[0])
    make_secrets(folder, user_id=user_id)
    sys.stdout.write(
        f"{folder.resolve().name} is complete; keep ca-key.pem and etcd/ca-key.pem where you keep backups\n"
    )
    return 0


def make_secrets(folder: Path, *, user_id: int) -> None:
    """Write what is missing, and new certificates of the authorities that are there."""
    servers = make_certificates(folder, hosts=COORDINATORS, days=DAYS)
    # An authority of its own: whoever has a certificate of Strata's must not get into etcd with it.
    etcd = make_certificates(folder / "etcd", hosts=ETCD_NODES, days=DAYS, are_peers=True)
    token, storage, server_keys = folder / "admin-token", folder / "storage.toml", folder / "s3.json"
    if not token.exists():
        write_private(token, f"{make_token().text}\n".encode())
    if not storage.exists():
        key_id, secret = secrets.token_hex(10), secrets.token_urlsafe(30)
        write_private(storage, STORAGE.format(key_id=key_id, secret=secret).encode())
        write_private(server_keys, json.dumps(_identities(key_id, secret), indent=2).encode())
    _give(user_id, servers.key, token, storage, etcd.client_key)
    _give(os.getuid(), servers.ca_key, etcd.ca_key, etcd.key, *([server_keys] if server_keys.exists() else []))
    # What is in them is private; that they are there is not, and Compose must find it.
    folder.chmod(0o755)
    (folder / "etcd").chmod(0o755)


def _identities(key_id: str, secret: str) -> dict[str, object]:
    credentials = [{"accessKey": key_id, "secretKey": secret}]
    return {"identities": [{"name": "workers", "credentials": credentials, "actions": ["Read", "Write", "List"]}]}


def _give(user_id: int, *paths: Path) -> None:
    for path in paths:
        os.chown(path, user_id, -1)
        path.chmod(0o600)


if __name__ == "__main__":
    sys.exit(main())
