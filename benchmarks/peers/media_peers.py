"""Tokens and JPEG in benchmarks/data.py: sequences of 4,096 tokens, and pictures of 256 by 256 in tars.

Each contestant is a function of (folder, batch size, workers), as in data_peers. A batch of pictures is decoded to RGB;
a batch of tokens has whole sequences, in random order.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.data_peers import FILES, SAMPLE_BYTES, Batches, Contestant, _torch_loader, files_of, noise

# As many bytes as the samples of the other formats have.
TOKENS = SAMPLE_BYTES // 2
SIDE = 256
TOKEN_OPTIONS = {"dtype": "uint16", "sequence_length": TOKENS}


def write_tokens(folder: Path, samples: int) -> None:
    """Write files of token numbers, one after the other."""
    for number, first, count in files_of(samples):
        noise(number, first, count).tofile(folder / f"{number}.uint16.bin")
    from litdata.streaming.item_loader import TokensLoader

    write_litdata(folder, _Sequences(samples), TokensLoader(block_size=TOKENS))


def _picture(at: int) -> bytes:
    from PIL import Image

    # Smooth, as photographs are: noise would be the worst case of every decoder.
    rng = np.random.default_rng(at)
    small = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    sink = io.BytesIO()
    small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(sink, "JPEG", quality=90)
    return sink.getvalue()


def write_jpeg(folder: Path, samples: int) -> None:
    """Write archives of pictures, a tenth as many as other samples: each takes longer."""
    import tarfile

    samples = max(FILES, samples // 10)
    for number, first, count in files_of(samples):
        with tarfile.open(folder / f"{number:06d}.tar", "w") as tar:
            for at in range(first, first + count):
                data = _picture(at)
                entry = tarfile.TarInfo(f"{at:08d}.jpg")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    write_litdata(folder, _Pictures(samples))


def strata_tokens(folder: Path, batch_size: int, workers: int, *, order: str = "sticky") -> Batches:
    """Strata's views of mapped token files."""
    from strata.data import open_dataset

    dataset = open_dataset(
        str(folder), batch_size=batch_size, order=order, options=TOKEN_OPTIONS, to="torch" if workers else "numpy"
    )
    return _in_workers(dataset, workers)


def strata_jpeg(folder: Path, batch_size: int, workers: int) -> Batches:
    """Strata with its own decoding, on its threads."""
    from strata.data import open_dataset

    dataset = open_dataset(
        str(folder),
        batch_size=batch_size,
        columns=["jpg"],
        decode={"jpg": "rgb"},
        transform=_stack,
        to="torch" if workers else "numpy",
    )
    return _in_workers(dataset, workers)


def _stack(batch: Any) -> dict[str, Any]:
    return {"x": np.stack(list(batch["jpg"]))}


def _in_workers(dataset: Any, workers: int) -> Batches:
    if not workers:
        return dataset
    from strata.integrations.torch_data import TorchDataset

    return _torch_loader(TorchDataset(dataset), None, workers)


def torch_tokens(folder: Path, batch_size: int, workers: int) -> Batches:
    """A plain torch DataLoader over mapped files, shuffled over all sequences, as small training scripts have it."""
    import torch
    from torch.utils.data import BatchSampler, Dataset, RandomSampler

    class Mapped(Dataset[Any]):
        def __init__(self) -> None:
            paths = sorted(folder.glob("*.bin"))
            self.parts = [np.memmap(path, np.uint16, "r").reshape(-1, TOKENS) for path in paths]
            self.size = len(self.parts[0])

        def __len__(self) -> int:
            return sum(map(len, self.parts))

        def __getitem__(self, wanted: list[int]) -> Any:
            rows = np.stack([self.parts[at // self.size][at % self.size] for at in wanted])
            return {"x": torch.from_numpy(rows.view(np.int16))}

    data = Mapped()
    return _torch_loader(data, BatchSampler(RandomSampler(data), batch_size, drop_last=False), workers)


def webdataset_jpeg(folder: Path, batch_size: int, workers: int) -> Batches:
    """WebDataset with its usual shuffle and its decoder, which is Pillow's."""
    import webdataset as wds

    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    data = wds.WebDataset(urls, shardshuffle=FILES, empty_check=False).shuffle(1_000).decode("rgb8").to_tuple("jpg")
    return _torch_loader(data.batched(batch_size, partial=True), None, workers)


def write_litdata(folder: Path, items: Callable[[int], Iterator[Any]], item_loader: Any = None) -> None:
    """Write the samples of a folder in LitData's own chunks, beside it."""
    import litdata

    litdata.optimize(
        fn=items,
        inputs=list(range(FILES)),
        output_dir=str(_chunks_of(folder)),
        chunk_bytes=None if item_loader is not None else "32MB",
        # LitData counts tokens there.
        chunk_size=(32 << 20) // SAMPLE_BYTES * TOKENS if item_loader is not None else None,
        item_loader=item_loader,
        num_workers=1,
        verbose=False,
    )


class _Sequences:
    def __init__(self, samples: int) -> None:
        self.files = files_of(samples)

    def __call__(self, number: int) -> Iterator[Any]:
        import torch

        for row in noise(*self.files[number]).view(np.uint16):
            yield torch.from_numpy(row.astype(np.int32))


class _Pictures:
    def __init__(self, samples: int) -> None:
        self.files = files_of(samples)

    def __call__(self, number: int) -> Iterator[Any]:
        _, first, count = self.files[number]
        for at in range(first, first + count):
            yield {"jpg": _picture(at)}


def _chunks_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-litdata")


def litdata_tokens(folder: Path, batch_size: int, workers: int) -> Batches:
    """LitData with its loader of tokens, which keeps them in four bytes each."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.item_loader import TokensLoader

    loader = TokensLoader(block_size=TOKENS)
    data = StreamingDataset(str(_chunks_of(folder)), item_loader=loader, shuffle=True, drop_last=False)
    return StreamingDataLoader(data, batch_size=batch_size, num_workers=workers)


def litdata_jpeg(folder: Path, batch_size: int, workers: int) -> Batches:
    """LitData with the bytes of pictures in its chunks, decoded by Pillow, which is what it uses itself."""
    from litdata import StreamingDataLoader, StreamingDataset
    from PIL import Image

    class Decoded(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            data = super().__getitem__(index)["jpg"]
            return {"x": np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))}

    data = Decoded(str(_chunks_of(folder)), shuffle=True, drop_last=False)
    return StreamingDataLoader(data, batch_size=batch_size, num_workers=workers)


MEDIA_WRITERS: dict[str, Callable[[Path, int], None]] = {"tokens": write_tokens, "jpeg": write_jpeg}
MEDIA_CONTESTANTS: dict[str, dict[str, Contestant]] = {
    "tokens": {
        "strata": strata_tokens,
        "strata global": partial(strata_tokens, order="global"),
        "torch + mmap": torch_tokens,
        "litdata": litdata_tokens,
    },
    "jpeg": {"strata": strata_jpeg, "webdataset": webdataset_jpeg, "litdata": litdata_jpeg},
}
# The bytes of a sample as the loop gets it: pictures are decoded.
PICTURE_BYTES = SIDE * SIDE * 3
