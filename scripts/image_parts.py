"""What images are built from where no image registry is reached: a base of Debian's packages, and locked wheels.

The base stands in for ``python:3.11-slim-bookworm``: the same C library, shell and Python from the same distribution.
Its packages are unpacked and not configured, which takes seconds where debootstrap takes minutes. Both are kept in
``.venv/images`` under a name made of what they come from, so that a changed lock makes new ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = [ROOT / "requirements" / f"{name}.txt" for name in ("build", "coordinator", "worker")]
PACKAGES = (
    "base-files", "base-passwd", "coreutils", "dash", "findutils", "libc-bin", "libstdc++6", "python3", "python3-pip",
)  # fmt: skip


def _named(name: str, *origins: bytes) -> Path:
    digest = hashlib.sha256(b"\0".join(origins)).hexdigest()[:12]
    return ROOT / ".venv" / "images" / f"{name}-{digest}"


BASE = _named("base", Path(__file__).read_bytes()).with_suffix(".tar")
WHEELS = _named("wheels", *(lock.read_bytes() for lock in LOCKS))


def make() -> None:
    """Make what is missing of both; needs root and apt."""
    BASE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BASE.parent) as name:
        folder = Path(name)
        if not BASE.exists():
            _make_base(folder).rename(BASE)
        if not WHEELS.exists():
            _download_wheels(folder / "wheels").rename(WHEELS)


def _make_base(folder: Path) -> Path:
    root, archives, status = folder / "root", folder / "archives", folder / "status"
    (archives / "partial").mkdir(parents=True)
    root.mkdir()
    # Nothing counts as installed, so that apt brings every dependency; it checks the signatures as always.
    status.touch()
    options = [f"Dir::State::status={status}", f"Dir::Cache::archives={archives}", "APT::Install-Recommends=false"]
    options += ["APT::Sandbox::User=root"]
    _run("apt-get", "-qq", "-y", *(f"-o{option}" for option in options), "install", "--download-only", *PACKAGES)
    for package in sorted(archives.glob("*.deb")):
        _run("dpkg-deb", "--extract", package, root)
    # What the packages' own scripts would have done.
    for kind in ("passwd", "group"):
        shutil.copy(root / "usr/share/base-passwd" / f"{kind}.master", root / "etc" / kind)
    authorities = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    (root / "etc/ssl/certs/ca-certificates.crt").write_bytes(b"".join(path.read_bytes() for path in authorities))
    _run("chroot", root, "/sbin/ldconfig")
    # Modules that old versions of Python had are in the packages too, and do not compile.
    compiled = ["/usr/lib/python3/dist-packages/pip", f"/usr/lib/{_python_of(root)}"]
    _run("chroot", root, "python3", "-m", "compileall", "-q", "-x", "lib2to3|test", *compiled)
    for unused in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / unused, ignore_errors=True)
    _run("tar", "--create", "--directory", root, "--file", folder / "base.tar", ".")
    return folder / "base.tar"


def _python_of(root: Path) -> str:
    return (root / "usr/bin/python3").readlink().name


def _download_wheels(folder: Path) -> Path:
    """Bring the locked wheels for the base's Python, each checked by its hash."""
    with tempfile.TemporaryDirectory() as root:
        _run("tar", "--extract", "--file", BASE, "--directory", root, "./usr/bin/python3")
        version = _python_of(Path(root)).removeprefix("python")
    for lock in LOCKS:
        _run(
            sys.executable, "-m", "pip", "download", "-q", "--require-hashes", "--no-deps", "--only-binary", ":all:",
            "--python-version", version, "--dest", folder, "-r", lock,
        )  # fmt: skip
    return folder


def _run(*command: str | Path) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(
        [str(word) for word in command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode:
        sys.stderr.buffer.write(done.stdout + done.stderr)
        raise SystemExit(f"{' '.join(map(str, command[:6]))} … ended with {done.returncode}")


if __name__ == "__main__":
    make()
