# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Train a mixture-of-experts transformer on a CPU with every tensor in the allocator of vmm.

Sequences vary in length and the router sends a different number of tokens to each expert in each
step, so hardly any request for memory comes twice: what fragments the memory of a caching
allocator. Batches come from forked workers, activations are computed again in the backward pass.
Losses are bit for bit those of torch's own allocator (--allocator torch).

    python examples/train_moe_vmm.py
    python examples/train_moe_vmm.py --steps 20 --recording run.vmmtrace.gz
    python -m vmm view run.vmmtrace.gz

"held" is what the allocator had from the system at the most during a step, "alive" what tensors
used at the most, "lost" the share of the first that the second did not need: fragmentation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import vmm

VOCABULARY = 512


class Documents(Dataset[Tensor]):
    """Random walks over the vocabulary, each of a length of its own."""

    def __init__(self, count: int, longest: int) -> None:
        self.count, self.longest = count, longest

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        source = torch.Generator().manual_seed(index)
        length = int(torch.randint(self.longest // 8, self.longest, (), generator=source))
        return torch.randint(-3, 4, (length,), generator=source).cumsum(0) % VOCABULARY


def pad(documents: list[Tensor]) -> Tensor:
    """A batch as long as its longest document; -1 fills the rest."""
    return nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=-1)


class Experts(nn.Module):
    """Each token goes to the two experts that the router prefers."""

    def __init__(self, hidden: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(tokens[rows]) * weights[rows, place, None])
        return out.view_as(x)


class Layer(nn.Module):
    """Causal attention and experts, each around a residual stream."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.experts = Experts(hidden, experts)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.experts(self.norms[1](x))


class Model(nn.Module):
    """Layers whose activations are computed again in the backward pass."""

    def __init__(self, hidden: int, layers: int, experts: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.layers = nn.ModuleList(Layer(hidden, experts) for _ in range(layers))
        self.head = nn.Linear(hidden, VOCABULARY)

    def loss(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1].clamp_min(0))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=-1)


class Training:
    """A model, its optimizer and an endless stream of batches; `step` is one step."""

    def __init__(self, hidden: int, layers: int, experts: int, longest: int, workers: int) -> None:
        torch.manual_seed(0)
        self.model = Model(hidden, layers, experts)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        # Workers are forks of this process without an allocator of vmm: their tensors are ordinary.
        self.batches = DataLoader(
            Documents(4096, longest),
            batch_size=4,
            collate_fn=pad,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        self.source = iter(self.batches)

    def step(self) -> float:
        batch = next(self.source, None)
        if batch is None:
            self.source = iter(self.batches)
            batch = next(self.source)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()


COLUMNS = "{:>4}  {:>9}  {:>14}  {:>13}  {:>6}"
HEAD = ("step", "loss", "most alive MiB", "most held MiB", "lost")


def describe(step: int, loss: float) -> str:
    stats = vmm.stats()
    alive, held = (stats[f"{kind}_bytes.all.peak"] / 2**20 for kind in ("allocated", "reserved"))
    cells = (f"{loss:.5f}", f"{alive:.1f}", f"{held:.1f}", f"{1 - alive / held:.1%}")
    return COLUMNS.format(step, *cells)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--allocator", choices=("vmm", "torch"), default="vmm")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--longest", type=int, default=256, help="tokens of the longest document")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--recording", help="a file for everything the allocator did")
    parser.add_argument("--json", help="a file for losses and statistics")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    ours = args.allocator == "vmm"
    if args.recording and not ours:
        raise SystemExit("--recording: needs --allocator vmm")
    losses: list[float] = []
    result: dict[str, Any] = {"losses": losses}
    with ExitStack() as stack:
        if ours:
            allocator = vmm.enable(device="cpu")
            print(COLUMNS.format(*HEAD))
        recorder = stack.enter_context(vmm.record()) if args.recording else None
        training = Training(args.hidden, args.layers, args.experts, args.longest, args.workers)
        for step in range(args.steps):
            losses.append(training.step())
            if ours:
                vmm.step()
                print(describe(step, losses[-1]))
                allocator.reset_peak()
            else:
                print(f"{step:>4}  {losses[-1]:>9.5f}")
        if ours:
            result["before"] = vmm.stats()
            vmm.compact(release=True)
            result["after"] = vmm.stats()
            freed = result["before"]["reserved_bytes.all.current"]
            freed -= result["after"]["reserved_bytes.all.current"]
            print(f"\n{freed / 2**20:.1f} MiB given back between steps; not an address has changed")
            allocator.check()
    if recorder is not None:
        recorder.recording.save(args.recording)
        print(f"{len(recorder.recording)} events are in {args.recording}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
