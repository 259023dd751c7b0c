"""The ring gives the same answers everywhere and for ever, and a change moves only what it must."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import ConsistentHash
from strata.compat import consistent_hash
from strata.errors import NoWorkersError, UnknownWorkerError
from strata.sharding import hashing
from strata.sharding import ring as ring_module
from strata.sharding.ring import Ring

NAMES = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=12)


def ring_of(*nodes: str) -> ConsistentHash:
    ring = ConsistentHash()
    for node in nodes:
        ring.add_node(node)
    return ring


GOLDEN = """
from strata import ConsistentHash
ring = ConsistentHash()
for node in ["alpha", "beta", "gamma", "délta"]:
    ring.add_node(node)
print([ring.get_node(key) for key in ["", "a", "checkpoint-7", "ключ"]])
print([ring.get_node_for_shard("imagenet", shard) for shard in range(8)])
"""
GOLDEN_ANSWER = (
    "['beta', 'gamma', 'gamma', 'délta']\n['gamma', 'beta', 'alpha', 'gamma', 'alpha', 'délta', 'délta', 'délta']\n"
)


def test_answers_are_the_same_in_every_process_and_version() -> None:
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", GOLDEN],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"},
        )
        assert done.stdout == GOLDEN_ANSWER


def test_hashes_are_the_same_in_every_version() -> None:
    assert hashing.hash_text("worker-0", hashing.Domain.NODE) == 17426926479548185093
    assert hashing.mix_integers(42, 7) == 1587005860896957696
    assert hashing.spread(5, np.arange(3)).tolist() == [7134611160154358618, 13877614986023876344, 4292726422858613063]


def test_equal_texts_of_different_domains_have_unrelated_hashes() -> None:
    assert len({hashing.hash_text("same", domain) for domain in hashing.Domain}) == len(hashing.Domain)


@given(nodes=NAMES, data=st.data())
def test_a_node_that_leaves_moves_only_its_own_shards(nodes: set[str], data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(sorted(nodes)))
    before, after = ring_of(*nodes), ring_of(*nodes)
    after.remove_node(lost)
    for shard in range(40):
        owner = before.get_node_for_shard("d", shard)
        if owner != lost:
            assert after.get_node_for_shard("d", shard) == owner


@given(nodes=NAMES)
def test_shards_of_all_nodes_are_all_shards_once(nodes: set[str]) -> None:
    ring = ring_of(*nodes)
    shards = np.concatenate([ring.get_shards_for_node(node, "d", 200) for node in nodes])
    assert sorted(shards.tolist()) == list(range(200))
    for node in nodes:
        assert all(ring.get_node_for_shard("d", shard) == node for shard in ring.get_shards_for_node(node, "d", 20))


@given(before=NAMES, after=NAMES)
def test_a_changed_ring_is_exactly_the_ring_built_anew(before: set[str], after: set[str]) -> None:
    changed, built = Ring(sorted(before)).with_nodes(sorted(after)), Ring(sorted(after))
    assert np.array_equal(changed._points, built._points)


@given(nodes=NAMES, keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_lookup_by_search_and_by_table_agree_with_the_definition(nodes: set[str], keys: list[int]) -> None:
    ring = Ring(sorted(nodes), virtual_nodes=3)
    wanted = np.array(keys, dtype=np.uint64)
    points = ring._points[:-1]
    position = np.uint64(0xFFFF_FFFF_FFF0_0000)
    expected = [
        int(next((point for point in points if point & position >= key & position), points[0]) & ~position)
        for key in wanted
    ]
    ring._keys_seen = -(10**9)
    assert ring.lookup(wanted).tolist() == expected
    ring._keys_seen = 10**9
    assert ring.lookup(wanted).tolist() == expected


@given(nodes=NAMES, keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50), data=st.data())
def test_the_quick_question_never_denies_an_owner(nodes: set[str], keys: list[int], data: st.DataObject) -> None:
    ring = Ring(sorted(nodes))
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes))))
    hashed = np.array(keys, dtype=np.uint64)
    assert ring.may_own(wanted, hashed)[wanted[ring.lookup(hashed)]].all()


def test_two_nodes_that_hash_alike_go_by_name_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "hash_text", lambda text, domain: 7 if text in {"twin-a", "twin-b"} else len(text))
    first, second = ring_of("twin-a", "twin-b", "other"), ring_of("other", "twin-b", "twin-a")
    answers = [first.get_node_for_shard("d", shard) for shard in range(100)]
    assert answers == [second.get_node_for_shard("d", shard) for shard in range(100)]
    assert set(answers) == {"twin-a", "other"}


def test_adding_twice_and_removing_a_stranger_change_nothing() -> None:
    ring = ring_of("a", "b", "a")
    ring.remove_node("stranger")
    assert ring.nodes == ["a", "b"]


def test_a_full_ring_refuses_one_more_node_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistent_hash, "MAX_NODES", 2)
    ring = ring_of("a", "b", "a")
    with pytest.raises(ValueError, match="a ring holds at most 2 nodes"):
        ring.add_node("c")
    assert ring.nodes == ["a", "b"]


def test_an_empty_ring_and_an_unknown_node_are_typed_errors() -> None:
    with pytest.raises(NoWorkersError, match="key 'k' cannot be assigned: there are no workers"):
        ConsistentHash().get_node("k")
    with pytest.raises(UnknownWorkerError, match="worker 'z' is not registered; there are a"):
        ring_of("a").get_shards_for_node("z", "d", 5)
    with pytest.raises(ValueError, match="virtual_nodes is 0"):
        ConsistentHash(virtual_nodes=0)
