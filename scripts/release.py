"""What is published: built so that anyone gets the same bytes, and tried where nothing else is.

    python -m scripts.release build            dist/: wheel, sdist, what they consist of (CycloneDX), and their digests
    python -m scripts.release check [3.12 …]   install that wheel on each Python that is here; run the demonstration

Nothing is taken from the working directory that is not in a build: the wheel is made from the unpacked sdist, and must
equal the one that is made from the tree.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from scripts.parts import ROOT, find_program
from strata import __version__

DIST = ROOT / "dist"
PAGE = "src/strata/dashboard/static/index.html"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# In the versions that are tested.
LOCKED = ("--constraint", str(ROOT / "requirements/dev.txt"))
# For a tree without git: 2020-01-01.
FALLBACK_EPOCH = "1577836800"
DEMO_TIMEOUT_S = 600


def build(dist: Path = DIST) -> list[Path]:
    """Write the wheel and the sdist, or exit where two builds differ; return their paths."""
    if not (ROOT / PAGE).exists():
        sys.exit("the dashboard is not built, and a wheel without it is not published: make dashboard")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, second = folder / "first", folder / "second"
        _hatch(ROOT, first, "sdist", "wheel")
        (sdist,) = first.glob("*.tar.gz")
        with tarfile.open(sdist) as tar:
            tar.extractall(folder / "unpacked", filter="data")
        _hatch(folder / "unpacked" / sdist.name.removesuffix(".tar.gz"), second, "wheel")
        _hatch(ROOT, second, "sdist")
        made = sorted(path for path in first.iterdir() if path.suffix in (".gz", ".whl"))
        if differing := [path.name for path in made if path.read_bytes() != (second / path.name).read_bytes()]:
            sys.exit(f"two builds differ: {', '.join(differing)}")
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir(parents=True)
        return [Path(shutil.copy(path, dist)) for path in made]


def describe(python: str, dist: Path = DIST) -> None:
    """Write what an environment consists of in which the wheel is installed."""
    program = find_program("cyclonedx-py")
    if program is None:
        sys.exit("cyclonedx-py is not here: make services PARTS=release")
    target = dist / f"strata_runtime-{__version__}.cdx.json"
    _run(program, "environment", python, "--output-reproducible", "--of", "JSON", "-o", target, env=_environ())


def add_digests(dist: Path = DIST) -> None:
    """Write SHA256SUMS over everything that is there."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def find_pythons() -> dict[str, str]:
    """Return the interpreters that are here, by version."""
    found = {}
    for version in PYTHONS:
        homes = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        for candidate in (shutil.which(f"python{version}"), *map(str, homes)):
            # A shim of pyenv is a program for every version, also for one that is not chosen.
            if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
                found[version] = candidate
    return found


def check(versions: tuple[str, ...] = PYTHONS, dist: Path = DIST) -> None:
    """Install the wheel into an empty environment of each Python, and run the demonstration from elsewhere."""
    pythons = find_pythons()
    for version in versions:
        if version not in pythons:
            print(f"python {version}: not here, not checked")
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            core = install(folder / "core", pythons[version], dist, "")
            _run(core, "-I", "-c", "import strata; strata.join, strata.CheckpointManager", cwd=folder)
            python = install(folder / "data", pythons[version], dist, "data")
            shown = _run(python, "-I", "-m", "strata", "version", cwd=folder).stdout.strip()
            _run(python, "-I", "-m", "strata", "demo", cwd=folder, timeout=DEMO_TIMEOUT_S)
            sizes = f"{_size_mb(folder / 'core')} MB, with data {_size_mb(folder / 'data')} MB"
            print(f"python {version}: {shown}, the demonstration's proofs hold; installed {sizes}", flush=True)


def install(folder: Path, python: str, dist: Path, extras: str, *options: str) -> str:
    """Make an environment with the wheel alone, and return its interpreter."""
    uv = find_program("uv")
    assert uv is not None
    _run(uv, "venv", "--quiet", "--python", python, folder)
    inside = str(folder / "bin" / "python")
    # By name and not by path: a path would stand in the metadata of the installation.
    wanted = f"strata-runtime[{extras}]=={__version__}" if extras else f"strata-runtime=={__version__}"
    _run(uv, "pip", "install", "--quiet", "--python", inside, "--find-links", dist, *options, wanted)
    return inside


def _hatch(source: Path, target: Path, *kinds: str) -> None:
    wanted = [word for kind in kinds for word in ("-t", kind)]
    _run(sys.executable, "-m", "hatchling", "build", *wanted, "-d", target, cwd=source, env=_environ())


def _environ() -> dict[str, str]:
    """Return the environment with the time that stands in every file: that of the last commit."""
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {"SOURCE_DATE_EPOCH": shown.stdout.strip() or FALLBACK_EPOCH, **os.environ}


def _run(
    *command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, timeout=timeout, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def _size_mb(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) // 1_000_000


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description="Build and try what is published.")
    parser.add_argument("action", choices=["build", "check"])
    parser.add_argument(
        "versions", nargs="*", help=f"of Python, to check; all of {', '.join(PYTHONS)} if none is named"
    )
    arguments = parser.parse_args()
    if arguments.action == "check":
        check(tuple(arguments.versions) or PYTHONS)
        return
    build()
    with tempfile.TemporaryDirectory() as name:
        describe(install(Path(name), sys.executable, DIST, "data,s3", *LOCKED))
    add_digests()
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
