"""Entries as bytes: what this version adds, the one before passes over, and a client cannot claim."""

from __future__ import annotations

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.events import NOBODY
from strata.coordinator.frames import read_command
from strata.coordinator.journal import Entry
from strata.coordinator.journal.entries import decode_entry, encode_entry, replay
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb

COMMAND = c.ConfigureJob(job_id="llm", min_workers=2)
WHO = ("launcher", "10.0.0.5")


def test_who_caused_an_entry_is_read_as_it_was_written() -> None:
    entry = Entry(COMMAND, 1.5, WHO)
    assert decode_entry(encode_entry(entry), 1.5) == entry


def test_an_entry_of_the_version_before_has_nobody() -> None:
    old = convert.command_to_message(COMMAND).SerializeToString(deterministic=True)
    assert decode_entry(old, 1.5) == Entry(COMMAND, 1.5, NOBODY)
    # And what nobody caused is written as that version writes it.
    assert encode_entry(Entry(COMMAND, 1.5)) == old


def test_the_version_before_finds_the_command_in_a_new_entry() -> None:
    assert convert.command_from_message(pb.Command.FromString(encode_entry(Entry(COMMAND, 1.5, WHO)))) == COMMAND


def test_a_name_in_a_frame_says_nothing() -> None:
    claimed = convert.command_to_message(COMMAND)
    claimed.by, claimed.address = "admin", "127.0.0.1"
    assert read_command(claimed) == COMMAND


def test_replayed_events_say_who_caused_them_and_those_after_them_do_not() -> None:
    cluster = Cluster()
    replay(cluster, [Entry(COMMAND, 1.0, WHO), Entry(c.RegisterWorker(worker_id="w", incarnation="1"), 2.0)])
    assert [(event.by, event.address) for event in cluster.events.since(0)[1]] == [WHO, NOBODY]
    cluster.apply(COMMAND, 3.0)
    assert cluster.events.since(0)[1][-1].by == ""
