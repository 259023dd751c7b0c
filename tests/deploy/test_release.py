"""What is published: complete, the same bytes each time, and enough to train where nothing else is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import strata
from scripts import release
from tests.testbed.pace import stretch
from tests.unit.test_without_pyarrow import TRAINING

pytestmark = [pytest.mark.part("release"), pytest.mark.part("dashboard"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; that ends the tests where two builds differ."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    release.build(folder)
    return folder


@pytest.fixture(scope="module")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the wheel, without extras."""
    return release.install(tmp_path_factory.mktemp("empty"), sys.executable, dist, "", *release.LOCKED)


def test_the_wheel_has_the_dashboard_and_says_what_it_is(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(f"strata_runtime-{strata.__version__}.dist-info/METADATA").decode())
    assert "strata/dashboard/static/index.html" in names
    assert metadata["Version"] == strata.__version__
    assert {line.partition(",")[0] for line in metadata.get_all("Project-URL")} >= {"Homepage", "Changelog"}
    assert not [
        line for line in metadata.get_all("Requires-Dist") if line.startswith("pyarrow") and "extra" not in line
    ]
    said = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier") if ":: Python :: 3." in line}
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in said
    assert said <= set(release.PYTHONS), "a version that make release-check does not look for"


def test_the_sdist_has_what_the_wheel_is_built_from(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/strata/dashboard/static/index.html"} <= names
    assert not [name for name in names if "node_modules" in name or name.startswith("tests/")]


def test_the_list_of_components_names_versions_and_no_path_of_this_machine(dist: Path, python: str) -> None:
    release.describe(python, dist)
    release.add_digests(dist)
    (listed,) = dist.glob("*.cdx.json")
    text = listed.read_text()
    components = {each["name"]: each["version"] for each in json.loads(text)["components"]}
    assert components["strata-runtime"] == strata.__version__
    assert {"numpy", "grpcio", "protobuf"} <= components.keys()
    assert "file:" not in text
    assert str(release.ROOT) not in text
    assert listed.name in (dist / "SHA256SUMS").read_text()


def test_the_wheel_trains_in_an_environment_with_nothing_else(python: str, tmp_path: Path) -> None:
    probe = "import importlib.util as i, sys; sys.exit(i.find_spec('pyarrow') is not None)"
    subprocess.run([python, "-I", "-c", probe], check=True)
    code = "import sys\n" + TRAINING
    done = subprocess.run(
        [python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=stretch(60), check=False
    )
    assert done.stdout.splitlines()[:1] == ["3 3.0 4.0 5.0 6.0 7.0 8.0"], done.stderr
