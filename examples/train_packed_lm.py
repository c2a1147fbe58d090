# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Train a small language model on packed documents with FlashMask attention, on a CPU.

The text is what every Python brings along: the source of its standard library. Its functions and
classes are packed several to a sequence, and a causal document mask keeps them from seeing each
other. The mask is a new one in every step, yet the model is compiled once. At the end the same
training step is timed with the attentions that torch itself offers.

    python examples/train_packed_lm.py                  a few minutes on two cores
    python examples/train_packed_lm.py --steps 1000     a better model
    python examples/train_packed_lm.py --attention sdpa the same training with a dense mask

Pictures and numbers go to demo_out/.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import flashmask
from packed_lm.attention import ATTEND
from packed_lm.compare import Row, compare
from packed_lm.data import Corpus, Packed, load_corpus, pack, unigram_entropy
from packed_lm.model import Shape, Transformer
from packed_lm.pictures import draw_loss, draw_mask, draw_speeds
from packed_lm.sampling import write
from packed_lm.screen import Screen, amount
from packed_lm.training import History, Trainer, evaluate, train

PROMPTS = ("def ", "class ", "    for ", "import ")

NO_FLEX = (
    "FlexAttention has no backward on CPU, so nothing can be trained with it here. A run with "
    "--attention flashmask times its forward in the comparison."
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    begin = time.perf_counter()
    screen = Screen()
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)

    screen.headline("Text")
    corpus = load_corpus(options.seed)
    held_out = list(itertools.islice(pack(corpus.held_out, options.seq_len), options.held_out))
    example = next(pack(corpus.train, options.seq_len))
    screen.facts(about_text(corpus, example))
    draw_mask(example, options.out / "mask.png")

    screen.headline(f"Training with {options.attention} attention, compiled")
    model = Transformer(options.shape, ATTEND[options.attention])
    trainer = Trainer(model, options.attention, options.steps)
    screen.facts(about_model(model))
    with screen.training(options.steps, options.seq_len) as report:
        history = train(trainer, pack(corpus.train, options.seq_len), report)
    loss, unigram = evaluate(trainer, held_out), unigram_entropy(held_out)
    screen.facts(about_training(history, options.seq_len, loss, unigram))
    draw_loss(history.losses, unigram, loss, options.out / "loss.png")

    rows: list[Row] = []
    if options.attention == "flashmask":
        screen.headline("What it writes")
        generator = torch.Generator().manual_seed(options.seed)
        for prompt in PROMPTS:
            screen.quote(write(model, prompt, options.write, generator))

        screen.headline(f"The attentions of torch on the same {options.seq_len:,} bytes")
        rows = compare(trainer, example, options.rounds)
        screen.comparison(rows)
        for line in about_comparison(example, options.rounds):
            screen.say(line)
        draw_speeds(rows, options.seq_len, options.out / "speed.png")

    seconds = time.perf_counter() - begin
    results = {
        "seconds": seconds,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "attention": options.attention,
        "seq_len": options.seq_len,
        "losses": history.losses,
        "held_out_loss": loss,
        "unigram_entropy": unigram,
        "comparison": [dataclasses.asdict(row) for row in rows],
    }
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    screen.headline(f"Done in {seconds // 60:.0f} min {seconds % 60:.0f} s")
    screen.say("\n".join(str(path) for path in sorted(options.out.iterdir())))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=450, help="training steps")
    parser.add_argument("--seq-len", type=int, default=2048, help="bytes per packed sequence")
    parser.add_argument(
        "--attention",
        choices=("flashmask", "sdpa", "flex"),
        default="flashmask",
        help="what to train with; flex cannot train on CPU and says so",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the data, the weights, the writing")
    parser.add_argument("--out", type=Path, default=Path("demo_out"), help="folder for results")
    parser.add_argument("--quick", action="store_true", help="a tiny model and run, to try it out")
    options = parser.parse_args(arguments)
    if options.attention == "flex":
        sys.exit(NO_FLEX)
    for name in ("steps", "seq_len"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    options.shape, options.held_out, options.rounds, options.write = Shape(), 16, 3, 200
    if options.quick:
        options.shape = Shape(layers=2, width=64, heads=2, kv_heads=1, head_dim=64, hidden=128)
        options.steps, options.seq_len = min(options.steps, 20), min(options.seq_len, 512)
        options.held_out, options.rounds, options.write = 2, 1, 40
    return options


def about_text(corpus: Corpus, example: Packed) -> dict[str, str]:
    mask = flashmask.masks.causal_document(example.lengths)
    density = float(mask.describe().density)
    return {
        "source": f"{corpus.files} files of the Python standard library, {amount(corpus.size)}",
        "documents": f"{len(corpus.train):,} to learn from, {len(corpus.held_out):,} held out "
        "(other files)",
        "one sequence": f"{len(example.lengths)} documents packed into {mask.seqlen_q:,} bytes; "
        f"the mask shows {density:.1%} of all pairs",
    }


def about_model(model: Transformer) -> dict[str, str]:
    shape = model.shape
    return {
        "model": f"{model.parameter_count() / 1e6:.1f} million parameters, {shape.layers} layers, "
        f"{shape.heads} query and {shape.kv_heads} key heads of {shape.head_dim}",
        "precision": f"bfloat16 autocast, {torch.get_num_threads()} threads",
    }


def about_training(history: History, seq_len: int, loss: float, unigram: float) -> dict[str, str]:
    steady = history.seconds[1:] or history.seconds
    speed = seq_len / statistics.median(steady)
    masks = 1000 * statistics.median(history.mask_seconds)
    return {
        "compiled": f"once, in {history.compile_seconds:.0f} s; then {len(history.losses) - 1} "
        "other masks without compiling again",
        "speed": f"{speed:,.0f} bytes/s, {masks:.1f} ms of each step for its mask",
        "loss": f"{history.losses[0]:.2f} -> {history.losses[-1]:.2f} nats per byte, "
        f"{history.documents:,} documents read",
        "held-out loss": f"{loss:.3f} nats = {loss / math.log(2):.2f} bits per byte",
        "unigram entropy": f"{unigram:.3f} nats = {unigram / math.log(2):.2f} bits per byte",
    }


def about_comparison(example: Packed, rounds: int) -> tuple[str, ...]:
    return (
        f"Medians of {rounds} rounds in which all take turns, on one mask of "
        f"{len(example.lengths)} documents, made beforehand.",
        "Training step: the whole model, compiled, with AdamW. Attention: one layer, bfloat16.",
        "FlexAttention is compiled; it has no backward on CPU. SDPA per document, one causal call",
        "for each, is a new program for every packing, so a model with it cannot compile once.",
    )


if __name__ == "__main__":
    main()
