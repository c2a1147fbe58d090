# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The training loop: a new mask in every step, compiled once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from packed_lm.attention import build_mask
from packed_lm.data import Packed
from packed_lm.model import Transformer


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


class Trainer:
    """A model, its optimizer, and one compiled graph for the loss.

    Args:
        model: the model to train.
        attention: name of its attention, which decides the form of the masks.
        steps: number of steps that the schedule of the learning rate is made for.
        peak: the highest learning rate.
    """

    def __init__(
        self, model: Transformer, attention: str, steps: int, peak: float = 1.5e-3
    ) -> None:
        self.model, self.attention, self.steps, self.peak = model, attention, steps, peak
        self.loss_of = torch.compile(model, fullgraph=True)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def step(self, packed: Packed, mask: object, number: int = 0) -> Tensor:
        """Forward, backward and update on one packed sequence; returns the loss."""
        with autocast():
            loss = self.loss_of(packed.tokens, packed.positions, mask, packed.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak * self.schedule(number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def schedule(self, number: int) -> float:
        """Return the share of the peak learning rate: a short rise, then a straight line to 0."""
        rise = max(1, self.steps // 12)
        return min((number + 1) / rise, (self.steps - number) / max(1, self.steps - rise))


@dataclasses.dataclass
class History:
    """What a training run went through."""

    losses: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)  # per step
    mask_seconds: list[float] = dataclasses.field(default_factory=list)
    documents: int = 0

    @property
    def compile_seconds(self) -> float:
        return self.seconds[0] if self.seconds else 0.0


def train(
    trainer: Trainer,
    sequences: Iterator[Packed],
    report: Callable[[History], None] = lambda history: None,
) -> History:
    """Train for as many steps as the trainer was made for.

    Raises:
        RuntimeError: something compiled again after the first step.
    """
    history = History()

    def one_step(number: int) -> None:
        packed = next(sequences)
        begin = time.perf_counter()
        mask = build_mask(trainer.attention, packed.lengths)
        built = time.perf_counter()
        history.losses.append(float(trainer.step(packed, mask, number)))
        history.mask_seconds.append(built - begin)
        history.seconds.append(time.perf_counter() - begin)
        history.documents += len(packed.lengths)
        report(history)

    one_step(0)
    # From here on every mask is different, and every one must fit the graph which the first step
    # compiled: torch raises an error if it does not.
    with torch.compiler.set_stance("fail_on_recompile"):
        for number in range(1, trainer.steps):
            one_step(number)
    return history


@torch.no_grad()
def evaluate(trainer: Trainer, sequences: Sequence[Packed]) -> float:
    """Return the mean loss in nats per byte."""
    losses = []
    with autocast():
        for packed in sequences:
            mask = build_mask(trainer.attention, packed.lengths)
            # Not the compiled graph: one without gradients would have to be compiled for this.
            losses.append(trainer.model(packed.tokens, packed.positions, mask, packed.targets))
    return float(torch.stack(losses).mean())
