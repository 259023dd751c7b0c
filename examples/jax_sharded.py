"""JAX arrays that are sharded over a mesh of devices as state; restored onto whatever mesh there is.

XLA_FLAGS=--xla_force_host_platform_device_count=4 makes four devices of one processor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import strata
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def loss_of(weights: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    scores = jnp.tanh(x @ weights["first"]) @ weights["second"] + weights["bias"]
    return -jax.nn.log_softmax(scores)[jnp.arange(len(y)), y].mean()


@jax.jit
def update(weights: dict, x: jax.Array, y: jax.Array) -> tuple[dict, jax.Array]:
    loss, gradient = jax.value_and_grad(loss_of)(weights, x, y)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, gradient), loss


def main() -> None:
    folder, until = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    mesh = Mesh(np.array(jax.devices()), ("model",))

    def shard(values: np.ndarray, *axes: str | None) -> jax.Array:
        return jax.device_put(values.astype(np.float32), NamedSharding(mesh, PartitionSpec(*axes)))

    chance = np.random.default_rng(0)
    weights = {
        "first": shard(chance.normal(size=(64, 32)) / 8, None, "model"),
        "second": shard(np.zeros((32, 10)), "model", None),
        "bias": shard(np.zeros(10)),
    }
    state = {"weights": weights}
    with strata.join(checkpoints=folder / "jax_sharded", save_every="10 steps", local=True) as run:
        data = run.dataset(folder / "data", order="global", global_batch_size=40, to="jax")
        for step in run.steps(state, data, epochs=100, until=until):
            with step:
                state["weights"], loss = update(state["weights"], step.batch["x"], step.batch["y"])
                step.report(loss=float(loss))
        shards = len(state["weights"]["first"].addressable_shards)
        loss = run.metrics.get("loss", float("nan"))  # none where the training was over already
        print(f"{shards} shards: step {run.step_number}, loss {loss:.3f}")


if __name__ == "__main__":
    main()
