"""``strata journal``: what is exported can be imported anywhere, and nothing is overwritten or guessed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import xxhash

from strata.client.unary import get_key, set_key
from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.coordinator.journal import Entry, SqliteJournal
from strata.coordinator.journal.entries import replay
from strata.coordinator.journal.transfer import export_journal, read_file
from strata.errors import JournalDamagedError, UnusableJournalError
from tests.testbed.ha.etcd import EtcdCluster, lead, new_target
from tests.testbed.ha.replicas import Replicas
from tests.testbed.pace import stretch
from tests.testbed.process import run_program
from tests.testbed.servers import EtcdServer

pytestmark = pytest.mark.full

ENTRIES: list[Entry] = [
    Entry(c.RegisterWorker(worker_id=f"w{number}", incarnation="i"), 0.1 + number) for number in range(5)
]


def strata(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strata", *arguments]
    return run_program(command, capture_output=True, text=True, timeout=stretch(60), check=False, env={**os.environ})


@pytest.fixture
def journal(tmp_path: Path) -> str:
    """A journal with a snapshot and entries after it, as a coordinator leaves it."""
    path = tmp_path / "first.db"
    kept = SqliteJournal(path)
    cluster = Cluster()
    replay(cluster, ENTRIES[:2])
    kept.append(ENTRIES[:2])
    kept.snapshot(cluster.snapshot())
    kept.append(ENTRIES[2:])
    kept.close()
    return f"sqlite://{path}"


def load(path: Path) -> tuple[bytes | None, list[Entry]]:
    journal = SqliteJournal(path)
    try:
        return journal.load()
    finally:
        journal.close()


@pytest.mark.part("etcd")
def test_a_journal_goes_to_etcd_and_back_and_is_the_same(journal: str, etcd_server: EtcdServer, tmp_path: Path) -> None:
    etcd = str(new_target(etcd_server))
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert "3 entries" in strata("journal", "export", "--state", journal, str(first)).stdout
    assert strata("journal", "import", "--state", etcd, str(first)).returncode == 0
    verified = json.loads(strata("journal", "verify", "--state", etcd, "--json").stdout)
    assert (verified["entries"], verified["jobs"]) == (3, ["default"])
    assert strata("journal", "export", "--state", etcd, str(second)).returncode == 0
    back = tmp_path / "back.db"
    assert strata("journal", "import", "--state", f"sqlite://{back}", str(second)).returncode == 0
    assert load(back) == load(tmp_path / "first.db")
    refused = strata("journal", "import", "--state", etcd, str(first))
    assert refused.returncode == 1
    assert "is not empty, or a coordinator leads it" in refused.stderr


@pytest.mark.slow
@pytest.mark.part("etcd")
@pytest.mark.timeout(240)
def test_an_export_of_running_coordinators_is_all_that_a_new_etcd_needs(tmp_path: Path) -> None:
    file = tmp_path / "backup.jsonl"
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with (
        EtcdCluster(tmp_path / "old").serving() as etcd,
        Replicas(tmp_path / "old", etcd.url, "--lease", "600").serving() as replicas,
    ):
        kept = set_key(replicas.url, "default", "k", b"v", token=0)
        assert strata("journal", "export", "--state", etcd.url, str(file)).returncode == 0
        # They run on, and what they do now is not in the backup.
        assert set_key(replicas.url, "default", "k", b"later", token=kept.token).is_set
        verified = json.loads(strata("journal", "verify", "--state", etcd.url, "--json").stdout)
        assert verified["entries"] == 2
    # The quorum is lost for good: all of it is gone.
    with EtcdCluster(tmp_path / "new").serving() as etcd:
        assert strata("journal", "verify", str(file)).returncode == 0
        imported = strata("journal", "import", "--state", etcd.url, str(file))
        assert imported.returncode == 0, imported.stderr
        with Replicas(tmp_path / "new", etcd.url, "--lease", "600").serving() as replicas:
            found = get_key(replicas.url, "default", "k")
            assert (found.value, found.token) == (b"v", kept.token)
            assert set_key(replicas.url, "default", "k", b"on", token=kept.token).is_set


@pytest.mark.part("etcd")
def test_nothing_is_imported_while_a_coordinator_leads(journal: str, etcd_server: EtcdServer, tmp_path: Path) -> None:
    target, file = new_target(etcd_server), tmp_path / "export.jsonl"
    strata("journal", "export", "--state", journal, str(file))
    leader = lead(target)
    refused = strata("journal", "import", "--state", str(target), str(file))
    assert refused.returncode == 1
    assert "a coordinator leads it" in refused.stderr
    assert leader.load() == (None, [])


def test_a_journal_that_holds_something_is_not_overwritten(journal: str, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    strata("journal", "export", "--state", journal, str(file))
    refused = strata("journal", "import", "--state", journal, str(file))
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr
    assert len(load(tmp_path / "first.db")[1]) == 3


@pytest.mark.parametrize("damage", ["a byte changed", "the end is missing", "an entry is missing", "a newer version"])
def test_a_damaged_export_is_refused_as_a_whole(journal: str, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "export.jsonl"
    strata("journal", "export", "--state", journal, str(file))
    assert strata("journal", "verify", str(file)).returncode == 0
    lines = file.read_bytes().splitlines(keepends=True)
    if damage == "a byte changed":
        lines[2] = lines[2].replace(b'"at_s":', b'"at_s":9')
    elif damage == "the end is missing":
        del lines[-1]
    elif damage == "an entry is missing":
        del lines[2]
    else:
        lines[0] = lines[0].replace(b'"version":1', b'"version":2')
    file.write_bytes(b"".join(lines))
    verified = strata("journal", "verify", str(file))
    assert verified.returncode == 1
    words = "written by a newer version of Strata" if damage == "a newer version" else "it is damaged"
    assert words in verified.stderr
    assert strata("journal", "import", "--state", f"sqlite://{tmp_path}/new.db", str(file)).returncode == 1
    assert not (tmp_path / "new.db").exists()


def test_wrong_use_says_what_to_do(tmp_path: Path) -> None:
    assert "name an export, or a journal with --state" in strata("journal", "verify").stderr
    missing = strata("journal", "export", "--state", f"sqlite://{tmp_path}/none.db", str(tmp_path / "file"))
    assert "there is no such file" in missing.stderr
    assert "use sqlite:///path" in strata("journal", "export", "--state", "file", str(tmp_path / "file")).stderr
    assert "memory:// keeps nothing" in strata("journal", "verify", "--state", "memory://").stderr
    absent = strata("journal", "verify", str(tmp_path / "none.jsonl"))
    assert f"{tmp_path}/none.jsonl cannot be used: No such file or directory" in absent.stderr


@pytest.mark.parametrize("place", ["folder", "file/export.jsonl"])
def test_an_export_that_cannot_be_written_says_why_and_leaves_nothing(journal: str, tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    before = set(tmp_path.iterdir())
    refused = strata("journal", "export", "--state", journal, str(tmp_path / place))
    assert refused.returncode == 1
    assert f"{tmp_path / place} cannot be used: " in refused.stderr
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "to"),
    [
        (b'"has_snapshot":true', b'"other":true'),
        (b'"entry":{"at_s"', b'"entry":{"other"'),
        (b'"command":"', b'"command":"////'),
        (b'"command":"', b'"command":"!'),
        (b'"snapshot":"', b'"snapshot":"AAAA'),
        (b'"at_s":', b'"at_s":1e400,"x":'),
    ],
)
def test_an_export_of_another_hand_is_refused_in_words(journal: str, tmp_path: Path, change: bytes, to: bytes) -> None:
    file = tmp_path / "export.jsonl"
    export_journal(journal, file)
    lines = file.read_bytes().splitlines(keepends=True)
    lines[:-1] = [line.replace(change, to) for line in lines[:-1]]
    # With a right digest: whoever wrote it meant it.
    end = json.loads(lines[-1])
    end["end"]["digest"] = xxhash.xxh3_128_hexdigest(b"".join(lines[:-1]))
    lines[-1] = json.dumps(end).encode()
    file.write_bytes(b"".join(lines))
    with pytest.raises((UnusableJournalError, JournalDamagedError)):
        read_file(file).check(str(file))


@pytest.mark.parametrize("content", ["a database", "our table with other columns", "no database"])
@pytest.mark.parametrize("command", ["verify", "import", "coordinator"])
def test_a_file_of_another_program_is_left_as_it_is(tmp_path: Path, journal: str, content: str, command: str) -> None:
    export, path = tmp_path / "export.jsonl", tmp_path / "mlflow.db"
    export_journal(journal, export)
    if content == "no database":
        path.write_bytes(b"a model\n" * 200)
    else:
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE runs (id)" if content == "a database" else "CREATE TABLE entries (id)")
            database.commit()
    path.chmod(0o644)
    before = path.read_bytes()
    arguments = {
        "verify": ["journal", "verify", "--state", f"sqlite://{path}"],
        "import": ["journal", "import", "--state", f"sqlite://{path}", str(export)],
        "coordinator": ["coordinator", "--accept-journal-loss", "--state", f"sqlite://{path}"],
    }
    refused = strata(*arguments[command])
    assert refused.returncode == 1
    assert "mlflow.db cannot be used: it is" in refused.stderr
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("mlflow")] == ["mlflow.db"]
