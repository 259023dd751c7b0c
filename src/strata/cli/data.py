"""``strata data``: index, inspect, preview, prepare, tokenize and audit datasets, on local paths and URLs."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.audit import audit_data
from strata.cli.output import AsJson, print_json, print_table
from strata.cli.progress import show_bytes, show_rows, show_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.data.rows.index import Index
    from strata.data.rows.row_sequence import DatasetRows

app = typer.Typer(
    help="Index, inspect, preview, prepare, tokenize and audit datasets.",
    epilog="Formats: parquet, arrow, csv, jsonl, tfrecord, webdataset, numpy, tokens. See docs/data.md.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command("audit", epilog="Example: strata data audit default imagenet --epoch 3")(audit_data)

# The size of the batches by which ``inspect`` says how random orders are.
SHUFFLE_BATCH = 256

Url = Annotated[
    str, typer.Argument(help="A directory, a file, or a pattern; local or s3://, gs://, az://.", metavar="URL")
]
Format = Annotated[str | None, typer.Option("--format", help="The format, if the file names do not show it.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the format, e.g. dtype=uint16.", metavar="NAME=VALUE"),
]
Split = Annotated[
    str | None, typer.Option("--split", help="Which split to read: train, train+test, or all.", metavar="NAME")
]
Processes = Annotated[int | None, typer.Option("--processes", min=1, help="Default: one for each core.")]
Engine = Annotated[str, typer.Option("--engine", help="Where the work runs: local, or ray for a Ray cluster.")]
CachePath = Annotated[str | None, typer.Option("--cache", help="The cache's directory; default DATA_CACHE_PATH.")]


@app.command("index", epilog="Example: strata data index s3://bucket/tokens -o dtype=uint16 -o sequence_length=2048")
def index(
    url: Url,
    *,
    kind: Format = None,
    option: Options = None,
    split: Split = None,
    cache: CachePath = None,
    as_json: AsJson = False,
) -> None:
    """Scan all files once, and write an index of where their rows are.

    The index is written next to the data, or into the cache if the data is read-only.
    Opening the dataset then reads only the index. Run it again when files have changed.
    """
    from strata.data.files.addresses import open_source
    from strata.data.files.cache import open_cache
    from strata.data.rows.scan import choose_files, scan_files, store_index
    from strata.data.rows.splits import select_split

    with _explained():
        source, opened = select_split(open_source(url), split), open_cache(cache)
        chosen, files = choose_files(source, kind)
        with show_bytes(f"{len(files)} files", sum(info.size_bytes for info in files)) as on_bytes:
            made = scan_files(source, chosen, _parse(option), files, opened, on_bytes=on_bytes)
        where = store_index(source, made, opened)
    if as_json:
        print_json({**_summary(made), "index": where})
    else:
        sys.stdout.write(f"{made.num_rows} rows in {len(made.files)} {made.kind} files; the index is {where}\n")


@app.command("inspect", epilog="Example: strata data inspect 'data/train-*.parquet' --files")
def inspect(
    url: Url,
    *,
    kind: Format = None,
    option: Options = None,
    split: Split = None,
    cache: CachePath = None,
    files: Annotated[bool, typer.Option("--files", help="Also list every file.")] = False,
    shard_size: Annotated[
        int | None, typer.Option(min=1, help="Rate the shuffle with shards of this many rows.")
    ] = None,
    window_shards: Annotated[int | None, typer.Option(min=2, help="Rate the shuffle with this window, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a dataset contains: its format, rows, columns with types, files, and how random its orders are."""
    rows = _open(url, kind, option, split, cache)
    made = rows.index
    shuffle = _shuffle(rows, shard_size=shard_size, window_shards=window_shards)
    if as_json:
        batches = {name: each.batch_type for name, each in rows.types.items()}
        print_json({**_summary(made), "batches": batches, "files": _files(made), "shuffle": shuffle})
        return
    for name, value in _summary(made).items():
        if name != "columns":
            sys.stdout.write(f"{name}: {value}\n")
    sys.stdout.write("\n")
    kinds = _summary(made)["columns"]
    print_table(
        ("column", "type", "in batches"), ((name, kinds[name], each.batch_type) for name, each in rows.types.items())
    )
    if shuffle:
        sys.stdout.write(f"\nhow random batches of {SHUFFLE_BATCH} are (1: as a full shuffle; 0: not at all)\n")
        heads = ("order", "window_shards", "window_rows", "mixing", "displacement")
        print_table(heads, ([str(each[head]) for head in heads] for each in shuffle))
    if files:
        sys.stdout.write("\n")
        keys = ("path", "rows", "blocks", "size_bytes")
        print_table(("file", "rows", "blocks", "bytes"), ([str(each[key]) for key in keys] for each in _files(made)))


@app.command("preview", epilog="Example: strata data preview data/ --rows 5 --columns text,label")
def preview(
    url: Url,
    *,
    kind: Format = None,
    option: Options = None,
    split: Split = None,
    cache: CachePath = None,
    count: Annotated[int, typer.Option("--rows", "-n", help="How many rows.", min=1)] = 10,
    start: Annotated[int, typer.Option("--start", help="The first row.", min=0)] = 0,
    columns: Annotated[str | None, typer.Option("--columns", help="Which columns, separated by commas.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the first rows of a dataset as a table."""
    rows = _open(url, kind, option, split, cache).keeping_nulls()
    with _explained():
        names = columns.split(",") if columns else rows.names
        start = min(start, rows.num_rows)
        found = rows.read(start, min(rows.num_rows, start + count), names)
    values = {name: found[name].tolist() for name in found.names}
    if as_json:
        print_json([{name: _plain(values[name][row]) for name in values} for row in range(found.num_rows)])
        return
    lines = ([str(start + row), *(_short(values[name][row]) for name in values)] for row in range(found.num_rows))
    print_table(("row", *values), lines)


@app.command("prepare", epilog="Example: strata data prepare 'raw/*.jsonl.gz' s3://bucket/train --shuffle --seed 7")
def prepare(
    url: Url,
    target: Annotated[str, typer.Argument(help="A new directory, or a URL with nothing below it.", metavar="TARGET")],
    *,
    kind: Format = None,
    option: Options = None,
    split: Split = None,
    cache: CachePath = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Which columns, separated by commas.")] = None,
    rows_per_file: Annotated[
        int | None, typer.Option("--rows-per-file", min=1, help="Default: files of about 256 MiB.")
    ] = None,
    rows_per_group: Annotated[
        int | None, typer.Option("--rows-per-group", min=1, help="Default: row groups of about 4 MiB.")
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Write the rows in a random order.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which random order.")] = 0,
    compression: Annotated[str, typer.Option("--compression", help="zstd, lz4, snappy, gzip or none.")] = "zstd",
    checksums: Annotated[bool, typer.Option("--checksums", help="Write a checksum for each page.")] = False,
    keep_lists: Annotated[
        bool, typer.Option("--keep-lists", help="Write arrays as lists, for tools that know only those.")
    ] = False,
    processes: Processes = None,
    engine: Engine = "local",
    as_json: AsJson = False,
) -> None:
    """Rewrite a dataset as Parquet files of equal size, with an index.

    Arrays of one shape are written as bytes, which read many times faster than lists.
    The target appears when it is complete. If the command is interrupted, run it again.
    """
    from dataclasses import asdict

    from strata.data.prepare.rewrite import Plan
    from strata.data.prepare.rewrite import prepare as write

    rows = _open(url, kind, option, split, cache, columns.split(",") if columns else None)
    with _explained():
        plan = Plan(
            rows_per_file=rows_per_file,
            rows_per_group=rows_per_group,
            shuffle=shuffle,
            seed=seed,
            compression=compression,
            checksums=checksums,
            arrays_as_bytes=not keep_lists,
        )
        with show_rows(_name_target(target), rows.num_rows) as on_rows:
            done = write(rows, target, plan, cache=cache, on_rows=on_rows, processes=processes or 1, engine=engine)
    if as_json:
        print_json(asdict(done))
    else:
        sys.stdout.write(
            f"wrote {done.rows} rows to {target}: {done.files} files, {done.size_bytes} bytes, "
            f"row groups of {done.rows_per_group}; shards of that size read best\n"
        )


@app.command(
    "tokenize", epilog="Example: strata data tokenize 'raw/*.jsonl' tokens/ --tokenizer tokenizer.json --end 0"
)
def tokenize(
    url: Url,
    target: Annotated[str, typer.Argument(help="A new directory.", metavar="TARGET")],
    *,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="A tokenizer.json, or tiktoken:NAME.", metavar="TOKENIZER")
    ],
    column: Annotated[str, typer.Option("--column", help="The column with the text.")] = "text",
    end: Annotated[int | None, typer.Option("--end", help="A token to append to each document.", min=0)] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="uint16 or int32; default: what holds the vocabulary.")
    ] = None,
    rows_per_file: Annotated[int, typer.Option("--rows-per-file", min=1, help="Documents in a file.")] = 50_000,
    processes: Processes = None,
    engine: Engine = "local",
    kind: Format = None,
    option: Options = None,
    split: Split = None,
    cache: CachePath = None,
    as_json: AsJson = False,
) -> None:
    """Write the tokens of a dataset's texts: files that load as they are, with Megatron's index beside each.

    If this is stopped, run it again: files that are done are kept.
    The output is the same for any number of processes and any engine.
    """
    import time
    from dataclasses import asdict

    from strata.data.prepare.tokenizing import TokenizePlan
    from strata.data.prepare.tokenizing import tokenize as write

    rows = _open(url, kind, option, split, cache)
    started_s = time.monotonic()
    with _explained():
        plan = TokenizePlan(tokenizer=tokenizer, column=column, end=end, dtype=dtype, rows_per_file=rows_per_file)
        with show_tokens(_name_target(target), rows.num_rows) as on_progress:
            done = write(rows, target, plan, processes=processes, engine=engine, on_progress=on_progress)
    speed = done.tokens / max(1e-9, time.monotonic() - started_s)
    if as_json:
        print_json({**asdict(done), "tokens_per_s": round(speed)})
    else:
        sys.stdout.write(
            f"wrote {done.tokens} tokens of {done.documents} documents to {target}: {done.files} files of "
            f"{done.dtype}, {speed:,.0f} tokens/s\n"
        )


# The readers need Arrow, which takes longer to import than `strata version` to run.
def _open(
    url: str,
    kind: str | None,
    option: list[str] | None,
    split: str | None,
    cache: str | None,
    columns: list[str] | None = None,
) -> DatasetRows:
    from strata.data.rows.row_sequence import open_rows

    with _explained():
        return open_rows(url, format=kind, options=_parse(option), columns=columns, split=split, cache=cache)


@contextmanager
def _explained() -> Iterator[None]:
    """Show a wrong argument as one, not as a bug."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parse(options: list[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE, where the value is JSON if it can be, else the text itself."""
    found = {}
    for each in options or []:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"--option {each}: write it as name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
        except RecursionError:
            raise typer.BadParameter(f"--option {name}: its value is nested too deeply") from None
    return found


def _shuffle(rows: DatasetRows, *, shard_size: int | None, window_shards: int | None) -> list[dict[str, Any]]:
    from strata.data.loading.row_layout import RATED_WINDOWS, rate_shuffle

    if not rows.num_rows:
        return []
    windows = sorted({*RATED_WINDOWS, *(() if window_shards is None else (window_shards,))})
    rated = rate_shuffle(rows, batch_size=SHUFFLE_BATCH, shard_size=shard_size, windows=windows)
    return [
        {
            "order": each.order,
            "window_shards": each.window_shards,
            "window_rows": each.window_rows,
            "mixing": round(each.quality.mixing, 3),
            "displacement": round(each.quality.displacement, 3),
        }
        for each in rated
    ]


def _summary(made: Index) -> dict[str, Any]:
    from strata.data.formats.tensors import describe_type

    return {
        "format": made.kind,
        "rows": made.num_rows,
        "files": len(made.files),
        "size_bytes": made.size_bytes,
        "blocks": len(made.block_rows),
        "options": made.options,
        "columns": {field.name: describe_type(field) for field in made.schema},
    }


def _files(made: Index) -> list[dict[str, Any]]:
    metas = map(made.meta, range(len(made.files)))
    return [
        {"path": info.path, "rows": meta.rows, "blocks": len(meta.block_rows), "size_bytes": info.size_bytes}
        for info, meta in zip(made.files, metas, strict=True)
    ]


def _short(value: Any, width: int = 60) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it; it has no number for what is none, or infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value)


def _name_target(target: str) -> str:
    """Name a target in few characters: what a progress bar says beside it is what people look at."""
    return f"to {target.rstrip('/').rpartition('/')[2][:24]}"
