"""Lazy staging: optimizers wait for the copy, and what is changed before it is never saved."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.format.layout import plan_part
from strata.checkpoint.format.tree import flatten
from strata.checkpoint.save.lazy import Seal
from strata.checkpoint.save.staging import StagingPool
from strata.errors import CheckpointTimeoutError, ManagerClosedError, StateChangedError
from tests.testbed.pace import stretch
from tests.testbed.parts import LazyModule
from tests.testbed.waiting import wait_until

torch: Any = LazyModule("torch")
HOOKS: Any = LazyModule("torch.optim.optimizer")
pytestmark = pytest.mark.part("torch")


class Job:
    """A model with buffers that its forward pass changes, and an optimizer that has state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.train()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def backward(self) -> None:
        self.model(torch.randn(16, 64)).square().mean().backward()

    def train(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def copy(self) -> list[Any]:
        return [tensor.clone() for tensor in tensors(self.state())]


def tensors(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in tensors(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in tensors(value)]
    return [tree] if isinstance(tree, torch.Tensor) else []


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Lazy copies begin when this event is set, and not before."""
    event = threading.Event()
    run_later = StagingPool.run_later

    def wait_first(pool: StagingPool, work: Any) -> None:
        def run() -> None:
            assert event.wait(stretch(60))
            work()

        run_later(pool, run)

    monkeypatch.setattr(StagingPool, "run_later", wait_first)
    return event


def test_what_is_saved_is_the_state_at_the_call_though_training_goes_on(tmp_path: Path, held: threading.Event) -> None:
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        manager.watch(job.optimizer)
        expected = job.copy()
        handle = manager.save_background(job.state(), 1, lazy=True)
        job.backward()  # changes the running mean of the norm
        stepped = threading.Thread(target=job.optimizer.step)
        stepped.start()
        assert not handle.done()
        assert stepped.is_alive()
        held.set()
        stepped.join(stretch(60))
        handle.result(stretch(60))
        assert all(map(torch.equal, tensors(manager.load().data), expected))
        assert not all(map(torch.equal, tensors(job.state()), expected))


def change_parameter(job: Job) -> None:
    with torch.no_grad():
        job.model[0].weight[3, 5] += 1


def change_moment(job: Job) -> None:
    job.optimizer.state[job.model[0].weight]["exp_avg"].zero_()


def change_through_numpy(job: Job) -> None:
    job.model[2].weight.data.numpy()[:] += 1


def change_one_byte_of_a_bias(job: Job) -> None:
    job.model[0].bias.data.numpy().view(np.uint8)[517] ^= 1


def change_data(job: Job) -> None:
    job.model[0].weight.data.mul_(1.5)


def change_many_at_once(job: Job) -> None:
    with torch.no_grad():
        torch._foreach_add_(list(job.model.parameters()), 1.0)


def change_through_dlpack(job: Job) -> None:
    torch.from_dlpack(job.model[0].weight.detach()).zero_()


def change_storage(job: Job) -> None:
    job.optimizer.state[job.model[0].weight]["exp_avg_sq"].untyped_storage().fill_(1)


def change_memory(job: Job) -> None:
    weight = job.model[0].weight
    ctypes.memset(weight.data_ptr(), 1, weight.nbytes)


def change_by_hand_in_a_step(job: Job) -> None:
    job.model[0].weight.data.copy_(torch.ones(300, 64))
    job.model[2].weight.data.copy_(torch.ones(8, 300))


CHANGES = [
    change_parameter,
    change_moment,
    change_through_numpy,
    change_one_byte_of_a_bias,
    change_data,
    change_many_at_once,
    change_through_dlpack,
    change_storage,
    change_memory,
    change_by_hand_in_a_step,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_is_changed_too_early_is_refused(tmp_path: Path, held: threading.Event, change: Any) -> None:
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        manager.watch(job.optimizer)
        handle = manager.save_background(job.state(), 1, lazy=True)
        change(job)
        held.set()
        with pytest.raises(StateChangedError, match="changed before it was staged"):
            handle.result(stretch(60))
        assert manager.list_checkpoints() == []
        manager.save(job.state(), 1)


@pytest.fixture
def after_copy(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is called after a lazy copy, and before anyone may change the state."""
    calls: list[Any] = []
    copy_tensors = StagingPool.copy_tensors

    def copy_first(pool: StagingPool, *arguments: Any, **options: Any) -> None:
        copy_tensors(pool, *arguments, **options)
        if threading.current_thread() is not threading.main_thread():
            calls.pop()()

    monkeypatch.setattr(StagingPool, "copy_tensors", copy_first)
    return calls


def change_one_byte_of_a_weight(job: Job) -> None:
    # No sample is of this byte.
    job.model[0].weight.data.numpy().reshape(-1).view(np.uint8)[20_003] ^= 1


@pytest.mark.parametrize("change", [*CHANGES, change_one_byte_of_a_weight])
def test_a_state_that_is_changed_while_it_is_copied_is_refused(
    tmp_path: Path, after_copy: list[Any], change: Any
) -> None:
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        manager.watch(job.optimizer)
        after_copy.append(lambda: change(job))
        handle = manager.save_background(job.state(), 1, lazy=True)
        with pytest.raises(StateChangedError, match="changed before it was staged"):
            handle.result(stretch(60))
        assert manager.list_checkpoints() == []


def test_parameters_that_get_other_memory_meanwhile_are_saved_as_they_were(
    tmp_path: Path, held: threading.Event
) -> None:
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        manager.watch(job.optimizer)
        expected = job.copy()
        handle = manager.save_background(job.state(), 1, lazy=True)
        job.model[0].weight.data = torch.zeros(300, 64)
        held.set()
        handle.result(stretch(60))
        assert all(map(torch.equal, tensors(manager.load().data), expected))


def test_tensors_whose_changes_torch_does_not_count_are_saved_and_compared(
    tmp_path: Path, held: threading.Event
) -> None:
    with torch.inference_mode():
        weight = torch.arange(50_000.0)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with CheckpointManager(tmp_path) as manager:
        manager.watch(optimizer)
        first = manager.save_background({"w": weight}, 1, lazy=True)
        held.set()
        first.result(stretch(60))
        assert torch.equal(manager.load().data["w"], torch.arange(50_000.0))
        held.clear()
        second = manager.save_background({"w": weight}, 2, lazy=True)
        with torch.inference_mode():
            weight += 1
        held.set()
        with pytest.raises(StateChangedError):
            second.result(stretch(60))


def test_what_an_optimizer_keeps_in_lists_and_dicts_is_staged_lazily_too(tmp_path: Path, held: threading.Event) -> None:
    weight, old, older, single = torch.ones(5), torch.ones(6), torch.ones(7), torch.ones(8)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {"history": [old, {"before": (older, 3)}]}
    optimizer.state["shared"] = single
    state = {"old": old, "older": older, "single": single}
    with CheckpointManager(tmp_path) as manager:
        manager.watch(optimizer)
        for step, (name, tensor) in enumerate(state.items()):
            held.clear()
            handle = manager.save_background(state, step, lazy=True)
            tensor.add_(1)
            held.set()
            with pytest.raises(StateChangedError, match=f"{name} .*changed before it was staged"):
                handle.result(stretch(60))


def test_arrays_and_transposed_parameters_are_staged_at_once(tmp_path: Path, held: threading.Event) -> None:
    weight, array = torch.arange(6.0).reshape(2, 3), np.arange(4)
    with CheckpointManager(tmp_path) as manager:
        manager.watch(torch.optim.SGD([weight], lr=0.1))
        handle = manager.save_background({"t": weight.t(), "a": array}, 1, lazy=True)
        weight.zero_()
        array[:] = 0
        held.set()
        handle.result(stretch(60))
        restored = manager.load().data
    assert restored["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert restored["a"].tolist() == [0, 1, 2, 3]


def test_where_bytes_cannot_be_looked_at_torchs_count_of_changes_decides() -> None:
    # A tensor with gaps stands for one on an accelerator: its bytes do not lie here as they are saved.
    weight = torch.arange(6.0).reshape(2, 3).t()
    flat = flatten({"w": weight})
    plan, pool = plan_part(flat.leaves), StagingPool(1)
    image, seal = pool.lend(plan.size_bytes), Seal(1, flat.leaves)
    pool.copy_tensors(image, plan, flat.leaves, in_order=False)
    seal.check(image, plan)
    weight.add_(1)
    with pytest.raises(StateChangedError, match=r"w .*changed before it was staged"):
        seal.check(image, plan)
    pool.close()


def test_a_lazy_save_is_pending_from_the_call_on(tmp_path: Path, held: threading.Event) -> None:
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        manager.watch(job.optimizer)
        handle = manager.save_background(job.state(), 1, lazy=True)
        with pytest.raises(CheckpointTimeoutError):
            manager.wait_pending(0.01)
        held.set()
        manager.wait_pending(60)
        assert handle.phase == "committed"


def test_a_lazy_save_that_close_does_not_wait_for_fails_and_hangs_nobody(tmp_path: Path, held: threading.Event) -> None:
    job = Job()
    manager = CheckpointManager(tmp_path)
    manager.watch(job.optimizer)
    handle = manager.save_background(job.state(), 1, lazy=True)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(manager.close, 0.01)
        wait_until(lambda: manager._work._loop._closed)
        held.set()
        with pytest.raises(CheckpointTimeoutError):
            closing.result(stretch(60))
    with pytest.raises(ManagerClosedError):
        handle.result(stretch(60))
    job.train()


def test_wait_staged_returns_when_the_state_may_change(tmp_path: Path, held: threading.Event) -> None:
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        manager.watch(job.optimizer)
        expected = job.copy()
        handle = manager.save_background(job.state(), 1, lazy=True)
        with pytest.raises(CheckpointTimeoutError, match="the staging of step 1"):
            handle.wait_staged(0.01)
        held.set()
        handle.wait_staged(60)
        change_parameter(job)
        handle.result(stretch(60))
        assert all(map(torch.equal, tensors(manager.load().data), expected))


def test_what_no_known_optimizer_manages_is_staged_at_once(tmp_path: Path, held: threading.Event) -> None:
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        expected = job.copy()
        handle = manager.save_background(job.state(), 1, lazy=True)
        change_parameter(job)
        held.set()
        handle.result(stretch(60))
        assert all(map(torch.equal, tensors(manager.load().data), expected))
        # It was seen stepping, and is known from now on.
        job.train()
        held.clear()
        handle = manager.save_background(job.state(), 2, lazy=True)
        change_parameter(job)
        held.set()
        assert isinstance(handle.error() or _error_of(handle), StateChangedError)


def _error_of(handle: Any) -> BaseException | None:
    with pytest.raises(StateChangedError):
        handle.result(stretch(60))
    return handle.error()


def test_a_manager_that_is_closed_stands_in_no_optimizers_way(tmp_path: Path) -> None:
    before = len(HOOKS._global_optimizer_pre_hooks)
    job = Job()
    with CheckpointManager(tmp_path) as manager:
        manager.save_background(job.state(), 1, lazy=True)
    assert len(HOOKS._global_optimizer_pre_hooks) == before
    job.train()
