"""The model that the demonstration trains: random features and a linear layer, in NumPy, with gradients by blocks.

Adding up floating-point numbers gives another result in another order. So a gradient is made for each block of samples,
and the blocks are added up in their order, whoever made them: the weights are then the same for any number of workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

INPUTS = 64
FEATURES = 512
CLASSES = 10
BLOCK_SIZE = 8
BATCH_SIZE = 64
LEARNING_RATE = np.float32(0.05)
MOMENTUM = np.float32(0.9)


def make_state() -> dict[str, Any]:
    """Return the weights at the beginning."""
    chance = np.random.default_rng(1)
    return {
        "features": chance.normal(size=(INPUTS, FEATURES)).astype(np.float32) / np.float32(8),
        "weights": np.zeros((FEATURES, CLASSES), np.float32),
        "momentum": np.zeros((FEATURES, CLASSES), np.float32),
    }


def block_gradients(state: dict[str, Any], x: Floats, y: npt.NDArray[np.int64]) -> tuple[Floats, float]:
    """Return the gradient of each block of the samples, stacked, and the sum of their losses."""
    gradients = [np.empty((0, FEATURES, CLASSES), np.float32)]
    loss = 0.0
    for start in range(0, len(x), BLOCK_SIZE):
        hidden = np.tanh(x[start : start + BLOCK_SIZE] @ state["features"])
        scores = hidden @ state["weights"]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        labels = y[start : start + BLOCK_SIZE]
        rows = np.arange(len(labels))
        loss -= float(np.log(scores[rows, labels]).sum())
        scores[rows, labels] -= 1
        gradients.append((hidden.T @ scores)[None].astype(np.float32))
    return np.concatenate(gradients), loss


def apply_gradients(state: dict[str, Any], payloads: list[bytes]) -> None:
    """Take one step with the gradients of all blocks, added up in their order."""
    total = np.zeros((FEATURES, CLASSES), np.float32)
    for payload in payloads:
        for gradient in np.frombuffer(payload, np.float32).reshape(-1, FEATURES, CLASSES):
            total += gradient
    state["momentum"] *= MOMENTUM
    state["momentum"] += total / np.float32(BATCH_SIZE)
    state["weights"] -= LEARNING_RATE * state["momentum"]
