"""The recipes of docs/data.md: a run that is resumed within an epoch takes the very next batch, in each trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata import open_dataset
from strata.data import Dataset
from tests.testbed.data.rows import MemoryRows

pytestmark = [
    pytest.mark.part("trainers"),
    pytest.mark.timeout(300),
    # What the trainers and torchdata say about each other and about torch is not for us to mend.
    pytest.mark.filterwarnings("ignore"),
]

EPOCHS = 3
STEPS_PER_EPOCH = 6


def opened(**options: Any) -> Dataset:
    return open_dataset(MemoryRows(45), batch_size=8, order="global", shard_size=6, to="torch", **options)


def uninterrupted() -> list[list[int]]:
    return [batch["id"].tolist() for batch in opened(epochs=EPOCHS)]


def make_model() -> Any:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.seen: list[list[int]] = []

        def forward(self, id: Any, vector: Any) -> dict[str, Any]:  # noqa: A002 - the column
            self.seen.append(id.tolist())
            return {"loss": (self.weight * vector.float().mean() * 1e-6).sum()}

    return Model()


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_transformers_trainer(tmp_path: Path, num_workers: int) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from strata.integrations.torch_data import TorchLoader

    class GoToStep(TrainerCallback):
        def __init__(self, dataset: Dataset) -> None:
            self.dataset = dataset

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.dataset.seek(*divmod(state.global_step * args.gradient_accumulation_steps, self.dataset.num_batches))

    def train(folder: Path, resume: Path | None = None) -> list[list[int]]:
        dataset, model = opened(), make_model()

        class StrataTrainer(Trainer):
            def get_train_dataloader(self) -> Any:
                return TorchLoader(dataset, num_workers=num_workers)

        arguments = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=EPOCHS,
            save_steps=1,
            ignore_data_skip=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
            remove_unused_columns=False,
        )
        trainer = StrataTrainer(model=model, args=arguments, callbacks=[GoToStep(dataset)])
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        return model.seen

    expected = uninterrupted()
    assert train(tmp_path / "first") == expected
    for step in (1, 3, 5, 6, 7, 11, 12, 17):
        resumed = train(tmp_path / f"from-{step}", tmp_path / "first" / f"checkpoint-{step}")
        assert resumed == expected[step:], step


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_lightning(tmp_path: Path, num_workers: int) -> None:
    import lightning
    import torch
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    from strata.integrations.torch_data import TorchLoader

    class GoToStep(Callback):
        def __init__(self, dataset: Dataset) -> None:
            self.dataset = dataset

        def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
            batches = checkpoint["global_step"] * trainer.accumulate_grad_batches
            self.dataset.seek(*divmod(batches, self.dataset.num_batches))

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(folder: Path, resume: Path | None = None) -> list[list[int]]:
        dataset, module = opened(), Module()
        loader = TorchLoader(dataset, num_workers=num_workers, persistent_workers=num_workers > 0)
        keep_all = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[keep_all, GoToStep(dataset)],
            default_root_dir=folder,
        )
        trainer.fit(module, loader, ckpt_path=None if resume is None else str(resume), weights_only=False)
        return module.model.seen

    expected = uninterrupted()
    assert train(tmp_path / "first") == expected
    for step in (1, 3, 5, 6, 7, 11, 12, 17):
        resumed = train(tmp_path / f"from-{step}", tmp_path / "first" / f"step={step}.ckpt")
        assert resumed == expected[step:], step


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_accelerate(tmp_path: Path, num_workers: int) -> None:
    import torch
    from accelerate import Accelerator

    from strata.integrations.torch_data import TorchLoader

    class Progress:
        """What the loop must know to go on; Accelerate saves and loads it with everything else."""

        step = 0

        def state_dict(self) -> dict[str, int]:
            return {"step": self.step}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.step = state["step"]

    def train(folder: Path, resume: Path | None = None) -> list[list[int]]:
        accelerator = Accelerator(cpu=True)
        dataset, progress, module = opened(), Progress(), make_model()
        model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
        accelerator.register_for_checkpointing(progress)
        if resume is not None:
            accelerator.load_state(str(resume))
        epoch, batches = divmod(progress.step, dataset.num_batches or 1)
        dataset.seek(epoch, batches)
        loader = TorchLoader(dataset, num_workers=num_workers)
        for number in range(epoch, EPOCHS):
            loader.set_epoch(number)
            for batch in loader:
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                progress.step += 1
                accelerator.save_state(str(folder / f"step-{progress.step}"))
        return module.seen

    expected = uninterrupted()
    assert train(tmp_path / "first") == expected
    for step in (1, 3, 5, 6, 7, 12, 17):
        assert train(tmp_path / f"from-{step}", tmp_path / "first" / f"step-{step}") == expected[step:], step


def test_a_loop_that_keeps_the_loader_as_part_of_its_state() -> None:
    """As torchtitan does: an endless iterator, and the loader's state_dict in the checkpoint of each step."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    from strata.integrations.torch_data import TorchDataset

    def make() -> Any:
        return StatefulDataLoader(TorchDataset(opened(epochs=None)), batch_size=None, num_workers=2)

    expected = uninterrupted()
    loader = make()
    batches = iter(loader)
    states = []
    for step in range(len(expected)):
        assert next(batches)["id"].tolist() == expected[step]
        states.append(json.loads(json.dumps(loader.state_dict())))
    for step in (1, 5, 6, 7, 12, 17):
        resumed = make()
        resumed.load_state_dict(states[step - 1])
        following = iter(resumed)
        assert [next(following)["id"].tolist() for _ in range(len(expected) - step)] == expected[step:], step
