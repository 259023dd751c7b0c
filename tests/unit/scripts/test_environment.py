"""How ``make`` installs packages: with uv from where pip would take them, and with pip where uv fails."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts import environment
from scripts.environment import LOCKS, create, install, pin_of, pip_settings, uv_variables


class Index(ThreadingHTTPServer):
    """A package index on this machine; ``agents`` are the programs that downloaded something."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/simple"
        self.wheels: dict[str, bytes] = {}
        self.agents: set[str] = set()
        self.refused = "nobody"


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        agent = self.headers["User-Agent"].partition("/")[0]
        self.server.agents.add(agent)
        name = self.path.rstrip("/").rpartition("/")[2].replace("-", "_" if self.path.endswith("/") else "-")
        links = "".join(f"<a href='{wheel}'>{wheel}</a>" for wheel in self.server.wheels if wheel.startswith(name))
        content = self.server.wheels.get(name, links.encode())
        self.send_response(403 if agent == self.server.refused else 200 if content else 404)
        self.send_header("Content-Type", "text/html" if links else "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment whose creation was interrupted before it had pip, and was completed."""
    folder = tmp_path_factory.mktemp("environment") / "with a space"
    venv.create(folder)
    (folder / "kept").touch()
    create(folder)
    return folder


@pytest.fixture
def index() -> Iterator[Index]:
    with Index() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def _plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of this machine's pip and uv counts, and uv has nothing in its cache."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def make_wheel(folder: Path, name: str, *, platform: str = "any") -> tuple[Path, Path]:
    """Make a package of one module that says its platform; return its wheel, and a lock file with its hash."""
    wheel, about = folder / f"{name}-1.0-py3-none-{platform}.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", f"PLATFORM = {platform!r}")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{about}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-{platform}\n"
        )
        archive.writestr(f"{about}/RECORD", f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    lock = folder / "lock.txt"
    lock.write_text(f"{name}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return wheel, lock


def has_module(folder: Path, name: str) -> bool:
    return subprocess.run([folder / "bin" / "python", "-c", f"import {name}"], capture_output=True).returncode == 0


def install_locked(folder: Path, lock: Path) -> None:
    install(folder, "--no-deps", "--require-hashes", "-r", lock)


@pytest.mark.parametrize("place", ["variable", "file"])
def test_uv_takes_packages_from_the_mirror_that_pip_is_configured_with(
    installed: Path, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    wheel, lock = make_wheel(tmp_path, f"from_{place}")
    index.wheels[wheel.name] = wheel.read_bytes()
    if place == "variable":
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
    else:
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index.url}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    install_locked(installed, lock)
    assert has_module(installed, f"from_{place}")
    assert index.agents == {"uv"}


def test_uv_takes_packages_from_a_folder_without_any_index(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, lock = make_wheel(tmp_path, "from_folder")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(environment, "install_with_pip", lambda *words: pytest.fail(f"pip is not needed: {words}"))
    install_locked(installed, lock)
    assert has_module(installed, "from_folder")


def test_pip_installs_what_uv_cannot_and_the_reason_takes_one_line(
    installed: Path,
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wheel, lock = make_wheel(tmp_path, "with_pip")
    index.wheels[wheel.name] = wheel.read_bytes()
    index.refused = "uv"
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    install_locked(installed, lock)
    assert has_module(installed, "with_pip")
    assert index.agents == {"uv", "pip"}
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("uv could not install them (")
    assert line.endswith("); trying pip.")


def test_without_uv_pip_installs(
    installed: Path, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel, lock = make_wheel(tmp_path, "without_uv")
    index.wheels[wheel.name] = wheel.read_bytes()
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(environment.shutil, "which", lambda _: None)
    install_locked(installed, lock)
    assert has_module(installed, "without_uv")
    assert index.agents == {"pip"}


def test_the_wheel_for_this_platform_is_taken_where_an_extra_index_has_only_another(
    installed: Path, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pure").mkdir()
    pure, pure_lock = make_wheel(tmp_path / "pure", "with_library")
    native, lock = make_wheel(tmp_path, "with_library", platform=f"linux_{os.uname().machine}")
    pin, pure_pin = lock.read_text().strip(), pure_lock.read_text().strip()
    lock.write_text(f"{pin} {pure_pin.partition(' ')[2]}\n")
    index.wheels[native.name] = native.read_bytes()
    with Index() as extra:
        threading.Thread(target=extra.serve_forever, daemon=True).start()
        extra.wheels[pure.name] = pure.read_bytes()
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", extra.url)
        install_locked(installed, lock)
        extra.shutdown()
    command = [installed / "bin" / "python", "-c", "import with_library; print(with_library.PLATFORM)"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"linux_{os.uname().machine}\n"


@pytest.mark.parametrize("place", ["variables", "file"])
@pytest.mark.parametrize("program", ["uv", "pip"])
def test_settings_that_say_what_to_install_or_where_to_are_ignored(
    installed: Path, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, place: str
) -> None:
    name = f"into_the_environment_{program}_{place}"
    wheel, lock = make_wheel(tmp_path, name)
    index.wheels[wheel.name] = wheel.read_bytes()
    (tmp_path / "constraints.txt").write_text(f"{name}<1.0\n")
    foreign = {"user": "yes", "target": str(tmp_path / "target"), "constraint": str(tmp_path / "constraints.txt")}
    if place == "variables":
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        for setting, value in foreign.items():
            monkeypatch.setenv(f"PIP_{setting.upper()}", value)
            monkeypatch.setenv(f"UV_{setting.upper()}", value)
        monkeypatch.setenv("UV_REQUIRE_HASHES", "1")
    else:
        lines = [f"{setting} = {value}" for setting, value in foreign.items()]
        (tmp_path / "pip.conf").write_text("\n".join(["[global]", f"index-url = {index.url}", *lines, ""]))
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    if program == "pip":
        monkeypatch.setattr(environment, "find_uv", lambda _: None)
    install_locked(installed, lock)
    assert has_module(installed, name)
    assert index.agents == {program}


def test_another_file_of_the_same_name_is_refused_by_both(
    installed: Path, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel, lock = make_wheel(tmp_path, "replaced")
    index.wheels[wheel.name] = wheel.read_bytes()
    lock.write_text(f"replaced==1.0 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    with pytest.raises(subprocess.CalledProcessError):
        install_locked(installed, lock)
    assert not has_module(installed, "replaced")


def test_pips_variables_win_over_its_files(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://global\nproxy = http://global:1\ncert = /global.pem\n"
        "extra-index-url =\n    https://one\n    https://two\n"
        "[install]\nindex-url = https://install\nproxy = http://install:1\n"
        "[download]\ncert = /download.pem\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable")
    settings = pip_settings(installed)
    assert settings["extra-index-url"].split() == ["https://one", "https://two"]
    assert {name: settings[name] for name in ("index-url", "proxy", "cert")} == {
        "index-url": "https://variable",
        "proxy": "http://install:1",
        "cert": "/global.pem",
    }


def test_pips_settings_become_those_of_uv() -> None:
    pip = {
        "index-url": "https://user:secret@mirror/simple",
        "extra-index-url": "\nhttps://one\nhttps://two",
        "find-links": "/wheels /more",
        "trusted-host": "mirror",
        "cert": "/ca.pem",
        "proxy": "http://proxy:3128",
        "timeout": "60",
    }
    assert uv_variables(pip, {}) == {
        "UV_DEFAULT_INDEX": "https://user:secret@mirror/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INSECURE_HOST": "mirror",
        "SSL_CERT_FILE": "/ca.pem",
        "ALL_PROXY": "http://proxy:3128",
    }


def test_what_the_user_set_for_uv_stays() -> None:
    given = {"UV_DEFAULT_INDEX": "https://mine"}
    assert uv_variables({"index-url": "https://pips", "cert": ""}, given) == {}


def test_an_environment_whose_creation_was_interrupted_is_completed(installed: Path) -> None:
    assert has_module(installed, "pip")
    assert (installed / "kept").exists()


def test_an_environment_whose_python_is_gone_is_created_again(tmp_path: Path) -> None:
    venv.create(tmp_path / "old")
    for name in ("python", "python3"):
        (tmp_path / "old" / "bin" / name).unlink()
        (tmp_path / "old" / "bin" / name).symlink_to("/no/such/python3.10")
    create(tmp_path / "old")
    assert has_module(tmp_path / "old", "pip")


def test_each_pinned_package_is_found_with_all_of_its_hashes() -> None:
    lock = (LOCKS / "dev.txt").read_text()
    pin = pin_of("uv", lock)
    assert pin.startswith("uv==")
    assert pin.count("--hash=sha256:") > 1
    assert pin in lock
    with pytest.raises(ValueError, match="no-such-package is not in the lock file"):
        pin_of("no-such-package", lock)


def test_packages_that_cannot_be_had_end_the_script_with_a_hint_and_no_traceback(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"no-such-package==1.0 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    done = subprocess.run([sys.executable, environment.__file__, installed, lock], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "Installing failed with exit code 1; the lines above say why. "
        "Where packages come from a mirror, name it: export PIP_INDEX_URL=..."
    )
    assert "Traceback" not in done.stderr
