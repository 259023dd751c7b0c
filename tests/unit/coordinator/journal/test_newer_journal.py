"""A journal that a newer version of Strata wrote is refused in words that name it, wherever it is read, and is kept."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from strata.cluster import Cluster, Limits
from strata.cluster import cluster as cluster_module
from strata.cluster import commands as c
from strata.coordinator.journal import Entry, open_journal, sqlite, transfer
from strata.coordinator.journal.etcd import records
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal
from strata.coordinator.journal.transfer import export_journal, import_journal
from strata.coordinator.replication.follower import Follower
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.errors import JournalVersionError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.ha.etcd import lead, resign
from tests.testbed.network.model_etcd import serving_model
from tests.testbed.pace import stretch
from tests.testbed.process import run_program
from tests.testbed.waiting import wait_until

# No version has a command under this number yet: its bytes say field 4000, of no length.
UNKNOWN_KIND = b"\x82\xfa\x01\x00"
ENTRY = Entry(c.ConfigureJob(min_workers=2), 1.0)


def rules() -> Entry:
    return ENTRY._replace(rules=cluster_module.RULES + 1)


def kind() -> Entry:
    assert pb.Command.FromString(UNKNOWN_KIND).WhichOneof("kind") is None
    return ENTRY._replace(data=UNKNOWN_KIND)


def state() -> bytes:
    return json.dumps({**json.loads(Cluster().snapshot()), "version": cluster_module.SNAPSHOT_VERSION + 1}).encode()


NEWER: dict[str, tuple[bytes | None, Sequence[Entry], str]] = {
    "rules": (None, [ENTRY, rules()], f"an entry that was decided by rules {cluster_module.RULES + 1}"),
    "kind": (None, [ENTRY, kind(), ENTRY], "an entry of a kind that is not known"),
    "snapshot": (state(), [], f"a snapshot of version {cluster_module.SNAPSHOT_VERSION + 1}"),
}


def write(url: str, content: tuple[bytes | None, Sequence[Entry], str]) -> None:
    journal = open_journal(url)
    if content[0] is not None:
        journal.snapshot(content[0])
    journal.append(content[1])
    journal.close()


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def read_and_check(path: Path, _: str) -> None:
    transfer.read_file(path).check(str(path))


@pytest.fixture(params=[*NEWER, "tables"])
def newer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Return a journal in SQLite that is newer in one way, and how that is named."""
    path = tmp_path / "journal.db"
    if request.param == "tables":
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "FORMAT", sqlite.FORMAT + 1)
            write(f"sqlite://{path}", (None, [ENTRY], ""))
        return path, f"tables of version {sqlite.FORMAT + 1}"
    write(f"sqlite://{path}", NEWER[request.param])
    return path, NEWER[request.param][2]


@pytest.mark.parametrize("accept_loss", [False, True])
async def test_a_coordinator_does_not_start_and_loses_nothing(newer: tuple[Path, str], accept_loss: bool) -> None:
    path, found = newer
    before = dump(path)
    config = CoordinatorConfig(
        grpc_address="127.0.0.1:0",
        channel_address="127.0.0.1:0",
        state=f"sqlite://{path}",
        accept_journal_loss=accept_loss,
    )
    with pytest.raises(JournalVersionError, match=r"Use the version of Strata that wrote it") as caught:
        await Coordinator(config).__aenter__()
    assert caught.value.found.startswith(found)
    assert str(path) in str(caught.value)
    assert dump(path) == before


@pytest.mark.parametrize("way", NEWER)
@pytest.mark.parametrize("read", [import_journal, read_and_check], ids=["import", "verify"])
def test_an_export_of_a_newer_journal_is_refused(way: str, read: Callable[[Path, str], object], tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    transfer._write_file(path, "sqlite://", transfer.Content(*NEWER[way][:2]))
    with pytest.raises(JournalVersionError) as caught:
        read(path, f"sqlite://{tmp_path / 'other.db'}")
    assert caught.value.found.startswith(NEWER[way][2])
    assert caught.value.journal == str(path)


def test_a_journal_is_not_exported_nor_verified(newer: tuple[Path, str], tmp_path: Path) -> None:
    path, found = newer
    with pytest.raises(JournalVersionError) as caught:
        export_journal(f"sqlite://{path}", tmp_path / "export.jsonl")
    assert caught.value.found.startswith(found)
    with pytest.raises(JournalVersionError):
        transfer.load_journal(f"sqlite://{path}").check(str(path))
    assert not (tmp_path / "export.jsonl").exists()


@pytest.mark.parametrize("command", [["journal", "verify"], ["coordinator", "--grpc-address", "127.0.0.1:0"]], ids=repr)
def test_a_command_tells_it_in_one_line_and_fails(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    write(f"sqlite://{path}", NEWER["kind"])
    done = run_program(
        [sys.executable, "-m", "strata", *command, "--state", f"sqlite://{path}"],
        capture_output=True,
        text=True,
        timeout=stretch(60),
    )
    assert done.returncode == 1
    told = " ".join(done.stderr.split())
    assert "newer version of Strata: it has an entry of a kind that is not known" in told
    assert "internal error" not in told
    assert "Traceback" not in told


def test_an_export_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    write(f"sqlite://{tmp_path / 'journal.db'}", (None, [ENTRY], ""))
    export_journal(f"sqlite://{tmp_path / 'journal.db'}", path)
    path.write_text(path.read_text().replace('"version":1', '"version":2', 1))
    with pytest.raises(JournalVersionError, match="an export of version 2, and this version reads versions 0 and 1"):
        import_journal(path, f"sqlite://{tmp_path / 'other.db'}")


@pytest.mark.parametrize("way", [*NEWER, "head"])
def test_a_standby_says_once_why_it_cannot_lead_and_goes_on(way: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving_model() as etcd:
        leader = lead(etcd.target)
        if way == "head":
            found = f"a format of version {records.FORMAT + 1}"
            leader.append([ENTRY])
            head = records.jp.Head.FromString(etcd.find(leader.keys.head)[leader.keys.head].value)
            head.version += 1
            etcd.put(leader.keys.head, head.SerializeToString())
        else:
            snapshot, batch, found = NEWER[way]
            if snapshot is not None:
                leader.snapshot(snapshot)
            else:
                leader.append(batch)
        follower = Follower(etcd.target, Limits(), lambda: None)
        follower.start()
        try:
            wait_until(lambda: found in follower.problem, "the reason")
            assert not follower.is_warm
            reads: list[str] = []
            etcd.fault = lambda name, _: reads.append(name)
            wait_until(lambda: len(reads) > 2, "it reads the journal again, in case that it was replaced")
        finally:
            follower.close()
        if way != "snapshot":  # which is read by the cluster
            with pytest.raises(JournalVersionError, match=found):
                EtcdJournal(etcd.target).load()
        if way != "head":
            resign(leader)
        leader.close()
    assert caplog.text.count("this standby will not lead") == 1
    assert "Traceback" not in caplog.text
