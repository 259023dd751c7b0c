"""Images of the servers of docker-compose.prod.yml, made of the programs that `make services` brought."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.parts import find_program
from tests.testbed.containers.engine import PYTHON_IMAGE

if TYPE_CHECKING:
    from tests.testbed.containers.engine import Engine

# The variable of .env, the image that it names here, and the programs in it.
SERVERS = {
    "ETCD_IMAGE": ("localhost/etcd:test", ("etcd", "etcdctl")),
    "PROMETHEUS_IMAGE": ("localhost/prometheus:test", ("prometheus",)),
    "S3_IMAGE": ("localhost/seaweedfs:test", ("weed",)),
}


def build_servers(engine: Engine) -> dict[str, str]:
    """Build the images, and return the variables that make Compose use them."""
    for name, programs in SERVERS.values():
        with tempfile.TemporaryDirectory(dir=engine.folder) as folder:
            for program in programs:
                found = find_program(program)
                assert found is not None, program
                shutil.copy(Path(found).resolve(), folder)
            (Path(folder) / "Dockerfile").write_text(f"FROM {PYTHON_IMAGE}\nCOPY {' '.join(programs)} /usr/bin/\n")
            engine.build(name, "Dockerfile", context=Path(folder))
    return {variable: name for variable, (name, _) in SERVERS.items()}
