"""What code blocks stand in: the names that a page takes for granted, and local folders in place of buckets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import strata
from strata.coordinator.journal import open_journal
from strata.demo.samples import make_dataset
from tests.integration.docs.data_files import write_arrow, write_csv, write_files, write_raw, write_torch_data

CHART = Path(__file__).parents[3] / "deploy" / "charts" / "strata"
HELM = Path(sys.prefix) / "bin" / "helm"
MODEL = """
import numpy as np
import strata
model = {"weights": np.zeros(64)}
optimizer = {"momentum": np.zeros(64)}
def train(model, optimizer, batch):
    model["weights"] += 0 if batch is None else float(len(batch["id"]))
    return 1.0
"""


@dataclass(frozen=True)
class Context:
    """How a block is run: after this prelude, with these texts replaced, under ``strata run`` if it needs workers.

    ``is_awaited``: the block stands in an async function. ``part`` is what it needs of scripts/parts.py.
    """

    prelude: str = ""
    postlude: str = ""
    replaced: dict[str, str] = field(default_factory=dict)
    workers: int = 0
    prepare: Callable[[Path], None] = lambda folder: None
    is_awaited: bool = False
    part: str = ""


def _write_journal(folder: Path) -> None:
    open_journal(f"sqlite://{folder / 'journal.db'}").close()


def _write_data(folder: Path) -> None:
    make_dataset(folder / "data", 600)


def _write_script(folder: Path) -> None:
    _write_data(folder)
    folder.joinpath("train.py").write_text(
        MODEL + 'with strata.join(checkpoints="checkpoints", save_every="5 steps") as run:\n'
        '    data = run.dataset("data", order="global", global_batch_size=60)\n'
        "    for step in run.steps({'model': model}, data):\n"
        "        with step:\n"
        "            step.report(loss=train(model, optimizer, step.batch))\n"
    )


def _train_and_stop(folder: Path) -> None:
    """Leave the checkpoints of a job that was stopped after step 20."""
    _write_data(folder)
    state = {"weights": np.zeros(64)}
    with strata.join(checkpoints=folder / "checkpoints", save_every="5 steps", local=True, job_id="llm-7b") as run:
        data = run.dataset(folder / "data", order="global", global_batch_size=60)
        for step in run.steps(state, data, epochs=3, until=20):
            with step:
                state["weights"] += len(step.batch["id"]) if step.batch else 0


_BUCKETS = {"s3://bucket/llm": "checkpoints", "s3://bucket/tokens": "data"}
_MANAGER = """
import numpy as np
from strata.checkpoint import CheckpointManager
class Module:
    def state_dict(self): return {"w": np.arange(16.0)}
model, step = Module(), 7
state = {"model": model.state_dict(), "step": step}
"""
_SAVED = _MANAGER + 'manager = CheckpointManager("run")\nmanager.save({**state, "model": {**state["model"]}}, step)\n'
_TORCH = """
import torch
from strata.checkpoint import CheckpointManager
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
step, rank, world_size, batch = 7, 0, 1, torch.ones(2, 4)
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
manager = CheckpointManager("run")
"""
_WRITERS = """
import numpy as np
from strata.checkpoint import CheckpointManager, Slice
manager, step, generation, rng = CheckpointManager("run"), 7, 1, {"seed": 3}
local_weight = np.ones((512, 1024), np.float32)
for rank in range(1, 8):
    rows = Slice(local_weight, shape=(4096, 1024), start=(rank * 512, 0))
    manager.save({"w": rows, f"rng{rank}": rng}, step, part=rank, parts=8, generation=generation)
rank = 0
"""
_LOADED = """
from strata.data import open_dataset
from strata.integrations.torch_data import TorchDataset, TorchLoader, merge_loader_states
url, rank, world_size = "data", 0, 1
"""
_GLOBAL = _LOADED + 'dataset = open_dataset(url, batch_size=64, order="global", to="torch")\n'
_TRAINED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def forward(self, id, x, y):
        return {"loss": self.weight.sum() * x.mean()}
"""
CONTEXTS = {
    "none": Context(),
    "chart": Context(replaced={"./deploy/charts/strata": str(CHART), "helm ": f"{HELM} "}, part="helm"),
    "journal": Context(prepare=_write_journal),
    "training": Context(prelude=MODEL, replaced=_BUCKETS, workers=2, prepare=_write_data),
    "manual loop": Context(
        prelude=MODEL
        + 'run = strata.join(checkpoints="checkpoints", save_every="5 steps")\n'
        + 'data = run.dataset("data", order="global", global_batch_size=60)\n'
        + "state = {'model': model}\n",
        postlude="assert run.checkpoints.list_checkpoints()[-1] == 30\nrun.close()\n",
        workers=2,
        prepare=_write_data,
    ),
    "paused": Context(
        prelude=MODEL + 'run = strata.join(checkpoints="checkpoints", local=True)\ndef evaluate(model): pass\n',
        postlude="run.close()\n",
    ),
    "blocks": Context(
        prelude=MODEL
        + """
SIZE = len(model["weights"])
def block_gradient(model, batch):
    return np.full(SIZE, np.random.random(), np.float32)
def add_up_and_step(optimizer, vectors):
    for each in vectors:
        model["weights"] += each
run = strata.join(checkpoints="checkpoints", save_every="5 steps")
""",
        postlude="assert run.checkpoints.list_checkpoints()[-1] == 15\nrun.close()\n",
        workers=2,
        prepare=_write_data,
    ),
    "ddp": Context(prelude=MODEL, replaced=_BUCKETS, workers=2, part="torch"),
    "script": Context(prepare=_write_script),
    "stopped job": Context(prepare=_train_and_stop),
    # docs/checkpoints.md
    "saving": Context(
        prelude=_MANAGER,
        # Each save of the page is of another step of a run.
        replaced={
            '"/data/run"': '"run"',
            "save_background(state, step,": "save_background(state, step + 1,",
            "save_async(state, step)": "save_async(state, step + 2)",
        },
        is_awaited=True,
    ),
    "lazy": Context(prelude=_TORCH, postlude="handle.result(60)\nmanager.close()\n", part="torch"),
    "policies": Context(prelude=_MANAGER, replaced={'"/data/run"': '"run"'}, postlude="manager.close()\n"),
    "restoring": Context(prelude=_SAVED, postlude="manager.close()\n", is_awaited=True),
    "writers": Context(prelude=_WRITERS, postlude="assert manager.load().step == 7\nmanager.close()\n"),
    "sharded": Context(
        prelude=_TORCH,
        # The copy that is loaded is of a run that committed.
        replaced={"manager.load(": "manager.wait_pending()\nmanager.load("},
        postlude="manager.close()\n",
        part="torch",
    ),
    "joint": Context(
        prelude=_MANAGER
        + "import os\nfrom strata.errors import CheckpointNotFoundError\n"
        + 'with CheckpointManager("checkpoints", job_id=os.environ["JOB_ID"]) as alone:\n    alone.save(state, 6)\n'
        + "generation = None\n",
        replaced={
            '"coordinator:50051"': 'os.environ["COORDINATOR_URL"]',
            '"s3://bucket/run", ': '"checkpoints", job_id=os.environ["JOB_ID"], ',
            '"worker-3")': '"worker-3", job_id=os.environ["JOB_ID"])',
        },
        workers=1,
    ),
    # docs/data.md
    "dataset": Context(
        replaced={"s3://bucket/train": "data", '"torch"': '"numpy"'},
        postlude='assert state["epoch"] == 1\n',
        prepare=_write_data,
    ),
    "states": Context(
        prelude='from strata.data import open_dataset\nurl = "data"\nstates = []\nfor rank in range(4):\n'
        "    part = open_dataset(url, batch_size=16, rank=rank, world_size=4)\n    next(iter(part))\n"
        "    states.append(part.state_dict())\n    part.close()\n",
        postlude='assert sum(len(batch["id"]) for batch in dataset) > 0\n',
        prepare=_write_data,
    ),
    "mixture": Context(
        prelude="from strata.data import open_dataset\n",
        replaced={"s3://bucket/web": "data", "s3://bucket/code": "data"},
        postlude="next(iter(mixture))\n",
        prepare=_write_data,
    ),
    "stages": Context(
        prelude="from strata.data import open_dataset\nfrom strata.data.mixture import Mixture\n"
        'web = code = open_dataset("data", batch_size=64, order="global")\n',
        postlude="next(iter(mixture))\n",
        prepare=_write_data,
    ),
    "loader": Context(
        prelude=_LOADED, postlude="assert len(list(loader)) > 0\n", prepare=write_torch_data, part="torch"
    ),
    "epochs": Context(
        prelude=_LOADED
        + "saved_epoch, epochs, dataset = 1, 2, open_dataset(url, batch_size=64, to='torch')\n"
        + "loader = TorchLoader(dataset, num_workers=0)\n",
        prepare=write_torch_data,
        part="torch",
    ),
    "loader states": Context(
        prelude=_GLOBAL
        + "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        + "other = open_dataset(url, batch_size=64, order='global', to='torch')\n"
        + "loader = StatefulDataLoader(TorchDataset(other), batch_size=None)\nnext(iter(loader))\n"
        + "states = [loader.state_dict()]\n",
        postlude="assert dataset.epoch == 0\n",
        prepare=write_torch_data,
        part="torch",
    ),
    "transformers": Context(
        prelude=_GLOBAL + _TRAINED + "from transformers import Trainer, TrainerCallback, TrainingArguments\n",
        postlude="arguments = TrainingArguments('out', max_steps=3, ignore_data_skip=True, report_to=[])\n"
        "trainer = StrataTrainer(Net(), arguments, callbacks=[GoToStep()])\ntrainer.train()\n"
        "assert trainer.state.global_step == 3\n",
        prepare=write_torch_data,
        part="trainers",
    ),
    "lightning": Context(
        prelude=_GLOBAL
        + """
import lightning, torch
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def training_step(self, batch, index):
        return self.weight.sum() * batch["x"].mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
module, path = Module(), None
trainer = lightning.Trainer(max_steps=3, logger=False, enable_progress_bar=False, accelerator="cpu")
""",
        postlude="assert trainer.global_step == 3\n",
        prepare=write_torch_data,
        part="trainers",
    ),
    "accelerate": Context(
        prelude=_GLOBAL + "class progress: step = 12\nepochs = 2\n", prepare=write_torch_data, part="trainers"
    ),
    "rows": Context(
        replaced={"s3://bucket/train": "data", "10_000_000, 10_000_512": "88, 600", '"text"': '"id"'},
        postlude='assert columns["id"].tolist() == list(range(88, 600))\n',
        prepare=_write_data,
    ),
    "parquet": Context(prepare=write_torch_data),
    "arrow": Context(prepare=write_arrow),
    "csv": Context(prepare=write_csv),
    "files": Context(prepare=write_files),
    "raw": Context(replaced={"s3://bucket/": "bucket/"}, prepare=write_raw),
    "megatron": Context(
        prelude="import numpy as np\nimport pathlib\nfrom strata.data import open_dataset\n"
        "pathlib.Path('data').mkdir()\ndocuments = [np.arange(n, dtype='uint16') for n in (3, 5, 9)] * 40\n",
        postlude="assert dataset.num_rows == 120\n",
    ),
    "bucket": Context(replaced={"s3://bucket/": "bucket/"}, prepare=write_files),
    # docs/storage.md
    "storage": Context(
        prelude="tensor, text, memory, pieces = b'x' * 100, b'{}', bytearray(100), [b'x', b'y']\n",
        replaced={"s3://my-training-checkpoints/llm-7b": "memory://"},
        postlude="assert memory == tensor\n",
        is_awaited=True,
    ),
    "patience": Context(),
}
