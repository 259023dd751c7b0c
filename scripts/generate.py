"""Write the files that follow from the source, or with ``--check`` say which of them are stale.

docs/configuration.md        every setting, from strata.config
.env.example                 the same, for Docker Compose
src/strata/wire/_generated   messages and stubs, from proto/
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

from strata.config import Settings, expected_of

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "src/strata/wire/_generated"

CONFIGURATION = """\
# Configuration

A setting comes from the first of these that has it:

1. an argument (of a function, or an option of a command),
2. the environment,
3. `strata.toml` in the working directory, or the file that `STRATA_CONFIG` names,
4. the default.

An environment variable that is empty counts as not set. `strata config` prints every setting with its value
and its source. A value that cannot be used stops the program with a line that names it:

```console
$ RANK=two strata config
strata: error: RANK='two' (environment): expected a whole number from 0 to WORLD_SIZE - 1
```

| environment | in `strata.toml` | default | what it is | what it may be |
|---|---|---|---|---|
{rows}

An example of `strata.toml`:

```toml
job_id = "llm-7b"
coordinator_url = "http://coordinator:50051"
storage_backend = "s3"
checkpoint_bucket = "my-training-checkpoints"
aws_region = "us-east-1"
```

Keep secrets out of the file: AWS credentials are best left to a profile or a role, and are never printed.
"""


def configuration() -> str:
    """Return docs/configuration.md."""
    rows = (
        f"| `{name.upper()}` | `{name}` | {_default(name)} | {field.description} | {expected_of(name)} |"
        for name, field in Settings.model_fields.items()
    )
    return CONFIGURATION.format(rows="\n".join(rows))


def env_example() -> str:
    """Return .env.example."""
    lines = ["# Copy to .env and set what you need; what is empty or a comment keeps its default.", ""]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else field.default
        lines += [f"# {field.description} Expected: {expected_of(name)}.", f"#{name.upper()}={default}", ""]
    return "\n".join(lines).rstrip() + "\n"


def messages() -> dict[str, str]:
    """Return the code of the messages in proto/, by path."""
    with tempfile.TemporaryDirectory() as folder:
        # Under this name the generated modules find each other where they will lie.
        package = GENERATED.removeprefix("src/")
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        sources = [f"-I{package}={ROOT / 'proto' / 'strata' / 'v1'}", f"{package}/coordinator.proto"]
        if protoc.main(["protoc", *outputs, *sources]) != 0:
            sys.exit("protoc failed; see above")
        made = sorted(Path(folder).rglob("coordinator_pb2*"))
        return {f"{GENERATED}/{path.name}": path.read_text(encoding="utf-8") for path in made}


def _default(name: str) -> str:
    value = Settings.model_fields[name].default
    return "not set" if value is None else f"`{value}`"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    check = parser.parse_args().check
    stale = []
    files = {"docs/configuration.md": configuration(), ".env.example": env_example(), **messages()}
    for name, text in files.items():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run 'make generate'")


if __name__ == "__main__":
    main()
