"""Replicas that are not the same are noticed at commit: reported by default, refused if asked."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from strata.checkpoint import CheckpointManager, RetentionPolicy, SavePolicy, Slice
from strata.cli.app import app
from strata.errors import (
    CheckpointExistsError,
    DivergedReplicasWarning,
    ReplicasDivergedError,
    SuspectCheckpointError,
)
from strata.run.loop.state import spread
from tests.testbed.pace import stretch

RANKS = 3


def save_all(folder: Path, states: list[Any], step: int = 1, **options: Any) -> Any:
    """Save one step from as many managers as there are states, and commit it."""
    for rank, state in enumerate(states):
        with CheckpointManager(folder, **options) as manager:
            manager.save(state, step, part=rank, parts=len(states))
    with CheckpointManager(folder, **options) as manager:
        return manager.commit(step)


def save_suspect(folder: Path, step: int, *, wrong: int = 1, **options: Any) -> Any:
    """Save replicas of which no majority is the same."""
    with pytest.warns(DivergedReplicasWarning):
        return save_all(folder, [weights(rank, wrong=wrong) for rank in range(2)], step, **options)


def weights(rank: int, *, wrong: int = 2) -> dict[str, Any]:
    return {"a": np.zeros(5), "w": np.arange(40_000.0).reshape(200, 200) + (rank == wrong), "z": np.ones(3)}


@pytest.mark.parametrize("is_spread", [False, True], ids=["each writes all", "each writes its share"])
def test_a_replica_that_differs_is_named_with_its_tensor_and_the_checkpoint_is_marked(
    is_spread: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = [weights(rank) for rank in range(RANKS)]
    if is_spread:
        states = [spread(state, rank=rank, world_size=RANKS) for rank, state in enumerate(states)]
    with caplog.at_level(logging.WARNING), pytest.warns(DivergedReplicasWarning, match=r"rank 2 held .* of w "):
        info = save_all(tmp_path, states)
    assert info.diverged is not None
    assert (info.diverged.ranks, info.diverged.tensor, info.diverged.tensors) == ((2,), "w", 1)
    assert "rank 2 held other values of w" in caplog.text
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == info
        restored = manager.load().data
    if not is_spread:
        assert np.array_equal(restored["w"], weights(0)["w"])
    where = str(tmp_path)
    for command in (["ls", where], ["show", where, "1"], ["verify", where], ["verify", where, "1", "--deep"]):
        shown = CliRunner().invoke(app, ["ckpt", *command], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert "rank 2 held other values of w" in shown.stdout
    (checked,) = json.loads(CliRunner().invoke(app, ["ckpt", "verify", where, "--json"]).stdout)
    assert checked["diverged"] == {"ranks": [2], "tensor": "w", "tensors": 1, "suspect": is_spread}


def test_a_restart_goes_on_before_suspect_checkpoints_and_saves_their_steps_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_all(tmp_path, [weights(0), weights(0)])
    for step in (2, 3):
        save_suspect(tmp_path, step)
    with CheckpointManager(tmp_path) as manager:
        restored = manager.load()
    assert (restored.step, restored.diverged) == (1, None)
    assert [type(error) for error in restored.skipped] == [SuspectCheckpointError] * 2
    assert "step 3 is suspect: rank 1 held other values of w" in caplog.text
    assert save_all(tmp_path, [weights(0), weights(0)], 2).diverged is None
    save_suspect(tmp_path, 3, wrong=0)
    with CheckpointManager(tmp_path) as manager:
        restored = manager.load()
        assert (restored.step, restored.diverged) == (2, None)
        assert np.array_equal(restored.data["w"], weights(0)["w"])
        for suspect in (manager.load(step=3), manager.load(allow_suspect=True)):
            assert (suspect.step, suspect.skipped) == (3, [])
            assert suspect.diverged is not None
            assert suspect.diverged.suspect
        assert manager.load(allow_suspect=True).data["w"][0, 0] == 1.0


@pytest.mark.parametrize("is_damaged", [False, True], ids=["no other", "the others are damaged"])
def test_the_newest_suspect_checkpoint_is_restored_loudly_if_there_is_nothing_better(
    is_damaged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if is_damaged:
        save_all(tmp_path, [weights(0), weights(0)])
        (tmp_path / "default/checkpoints/step_1/metadata.json").write_text("{}")
    for step in (2, 3):
        save_suspect(tmp_path, step)
    with CheckpointManager(tmp_path) as manager:
        restored = manager.load()
    assert restored.step == 3
    assert [error.step for error in restored.skipped] == [2, 1][: 1 + is_damaged]
    (loud,) = [each for each in caplog.records if "no checkpoint left that is not suspect" in each.message]
    assert loud.levelno == logging.ERROR


def test_retention_never_deletes_the_last_checkpoint_that_is_not_suspect(tmp_path: Path) -> None:
    retention = RetentionPolicy(keep_count=1, ttl_s=0)
    save_all(tmp_path, [weights(0), weights(0)])
    for step in (2, 3, 4):
        save_suspect(tmp_path, step, retention=retention)
    with CheckpointManager(tmp_path, retention=retention) as manager:
        manager.prune()
        assert manager.list_checkpoints() == [1, 4]


def test_a_good_checkpoint_is_never_replaced_by_another_save_of_its_step(tmp_path: Path) -> None:
    save_all(tmp_path, [weights(0), weights(0)])
    with pytest.raises(CheckpointExistsError):
        save_all(tmp_path, [weights(0), weights(0)])


def test_a_save_with_replicas_that_differ_fails_if_asked_and_commits_nothing(tmp_path: Path) -> None:
    with pytest.raises(ReplicasDivergedError, match="rank 1 held other values of w") as caught:
        save_all(tmp_path, [weights(rank, wrong=1) for rank in range(RANKS)], saving=SavePolicy(on_divergence="fail"))
    assert caught.value.ranks == [1]
    with CheckpointManager(tmp_path) as manager:
        assert manager.list_checkpoints() == []


def test_a_replica_that_differs_is_named_by_a_lazy_save_too(tmp_path: Path) -> None:
    for rank in range(RANKS):
        with CheckpointManager(tmp_path) as manager:
            state = spread(weights(rank), rank=rank, world_size=RANKS)
            manager.save_background(state, 1, part=rank, parts=RANKS, lazy=True).result(stretch(30))
    with CheckpointManager(tmp_path) as manager, pytest.warns(DivergedReplicasWarning, match=r"rank 2 held .* of w "):
        manager.commit(1)


def test_most_ranks_are_taken_to_be_right_also_against_rank_0(tmp_path: Path) -> None:
    with pytest.warns(DivergedReplicasWarning):
        info = save_all(tmp_path, [weights(rank, wrong=0) for rank in range(RANKS)])
    assert info.diverged.ranks == (0,)


def test_slices_that_two_ranks_hold_are_compared_and_those_of_one_are_not(tmp_path: Path) -> None:
    def piece(rank: int) -> dict[str, Any]:
        half = rank // 2
        return {
            "w": Slice(np.full((2, 3), float(half)) + (rank == 3), (4, 3), (2 * half, 0)),
            f"rng{rank}": np.ones(rank),
        }

    with pytest.warns(DivergedReplicasWarning):
        info = save_all(tmp_path, [piece(rank) for rank in range(4)])
    assert (info.diverged.ranks, info.diverged.tensor) == ((3,), "w")


@pytest.mark.parametrize("is_spread", [False, True])
def test_replicas_that_are_the_same_are_not_marked(is_spread: bool, tmp_path: Path) -> None:
    states = [weights(0) for _ in range(RANKS)]
    if is_spread:
        states = [spread(state, rank=rank, world_size=RANKS) for rank, state in enumerate(states)]
    assert save_all(tmp_path, states).diverged is None


def test_what_is_to_become_of_differing_replicas_is_a_known_word(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on_divergence='ignore' must be one of majority, warn, fail"):
        SavePolicy(on_divergence="ignore")
