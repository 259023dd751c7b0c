"""JAX: arrays as state, and gradients that meet through the coordinator, so that it runs wherever Strata does."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import strata


def loss_of(weights: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    scores = jnp.tanh(x @ weights["first"]) @ weights["second"]
    return -jax.nn.log_softmax(scores)[jnp.arange(len(y)), y].sum()


def main() -> None:
    folder = Path(sys.argv[1])
    chance = np.random.default_rng(0)
    state = {
        "first": jnp.asarray(chance.normal(size=(64, 32)).astype(np.float32)) / 8,
        "second": jnp.zeros((32, 10), jnp.float32),
    }
    gradient_of = jax.jit(jax.value_and_grad(loss_of))
    with strata.join(checkpoints=folder / "jax", save_every="10 steps") as run:
        data = run.dataset(folder / "data", order="global", global_batch_size=40, block_size=20, to="jax")
        for step in run.steps(state, data, epochs=2):
            with step:
                loss, gradient = gradient_of(state, step.batch["x"], step.batch["y"])
                flat = np.concatenate([np.ravel(gradient[name]) for name in sorted(gradient)])
                total = sum(
                    np.frombuffer(each, np.float32) for each in run.exchange(f"step {step.number}", flat.tobytes())
                )
                at = 0
                for name in sorted(state):
                    size = state[name].size
                    state[name] = state[name] - 0.002 * total[at : at + size].reshape(state[name].shape)
                    at += size
                step.report(loss=float(loss) / max(1, len(step.batch["y"])))
        loss = run.metrics.get("loss", float("nan"))  # none where the training was over already
        print(f"rank {run.rank} of {run.world_size}: step {run.step_number}, loss {loss:.3f}")


if __name__ == "__main__":
    main()
