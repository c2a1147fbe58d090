# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The example learns, compiles once, draws what it promises, and does the same with SDPA."""

import functools
import itertools
import json
import math
import re
import subprocess
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.house.project import ROOT

EXAMPLES = ROOT / "examples"

pytest.importorskip("rich")
pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def examples_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.fixture
def tiny():
    from packed_lm.model import Shape

    return Shape(layers=1, width=64, heads=2, kv_heads=1, head_dim=64, hidden=128)


@functools.cache
def corpus():
    from packed_lm.data import load_corpus

    return load_corpus(0)


def losses_of(kind, shape, steps, seq_len=256, compiled=True):
    from packed_lm.attention import ATTEND
    from packed_lm.data import pack
    from packed_lm.model import Transformer
    from packed_lm.training import Trainer, train

    torch.manual_seed(0)
    trainer = Trainer(Transformer(shape, ATTEND[kind]), kind, steps, peak=1e-2)
    if not compiled:
        trainer.loss_of = trainer.model
    return trainer, train(trainer, pack(corpus().train, seq_len))


def test_documents_are_packed_without_loss_or_padding():
    from packed_lm.data import pack

    documents = [b"abc", b"defgh", b"i" * 20]
    sequences = list(itertools.islice(pack(documents, 8), 4))  # 4 + 6 + 21 tokens and one more
    for packed in sequences:
        assert packed.tokens.shape == packed.targets.shape == packed.positions.shape == (1, 8)
        assert sum(packed.lengths) == 8
        expected = [p for length in packed.lengths for p in range(length)]
        assert packed.positions[0].tolist() == expected
    tokens = bytes(torch.cat([p.tokens[0] for p in sequences]).tolist())
    targets = bytes(torch.cat([p.targets[0] for p in sequences]).tolist())
    assert tokens[:31] == b"\0abc\0defgh\0" + b"i" * 20
    assert targets[:31] == b"abc\0defgh\0" + b"i" * 20 + b"\0"


def test_corpus_is_reproducible_and_held_out_files_are_apart():
    from packed_lm.data import load_corpus

    assert corpus() == load_corpus(0)
    assert corpus().train != load_corpus(1).train
    assert len(corpus().held_out) > 20
    shared = set(corpus().train) & set(corpus().held_out)
    assert len(shared) < len(corpus().held_out) / 10  # boilerplate such as license headers


def test_entropy_of_two_equally_frequent_bytes_is_one_bit():
    from packed_lm.data import pack, unigram_entropy

    sequences = list(itertools.islice(pack([b"\1\0" * 7 + b"\1"], 16), 1))
    assert unigram_entropy(sequences) == pytest.approx(math.log(2))


def test_masks_of_all_kinds_agree(tiny):
    from packed_lm.attention import ATTEND, build_mask

    lengths = [100, 1, 59, 96]
    query = torch.randn(1, 256, 2, 64)
    key, value = torch.randn(1, 256, 1, 64), torch.randn(1, 256, 1, 64)
    expected = ATTEND["sdpa"](query, key, value, build_mask("sdpa", lengths))
    for kind in ("flashmask", "loop"):
        out = ATTEND[kind](query, key, value, build_mask(kind, lengths))
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    dense = build_mask("sdpa", lengths)
    assert torch.equal(build_mask("flashmask", lengths).to_dense(), dense)


def test_training_compiles_once_and_learns(tiny, monkeypatch):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    compiler = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **kwargs: compiler(f, backend=counter, **kwargs)
    )
    _, history = losses_of("flashmask", tiny, steps=30)
    assert counter.frame_count == 1
    assert history.documents > 30
    assert sum(history.losses[-5:]) < 0.8 * sum(history.losses[:5])


def test_sdpa_takes_the_same_way(tiny):
    _, ours = losses_of("flashmask", tiny, steps=8, compiled=False)
    _, theirs = losses_of("sdpa", tiny, steps=8, compiled=False)
    _, again = losses_of("flashmask", tiny, steps=8, compiled=False)
    assert ours.losses == again.losses
    # Both round to bfloat16, each at its own places; differences grow with every step.
    assert ours.losses == pytest.approx(theirs.losses, abs=0.02)
    assert ours.losses[-1] < ours.losses[0] - 0.3


def test_writing_continues_the_prompt_as_the_full_forward_would(tiny):
    import flashmask
    from packed_lm.attention import ATTEND, build_mask
    from packed_lm.model import Cache, Transformer
    from packed_lm.sampling import write

    torch.manual_seed(0)
    model = Transformer(tiny, ATTEND["flashmask"])
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.normal_(model.blocks[0].attention.out.weight)
    tokens, positions = torch.randint(1, 256, (1, 40)), torch.arange(40)[None]
    whole = model(tokens, positions, build_mask("flashmask", [40]))
    caches = [Cache() for _ in model.blocks]
    for start, stop in ((0, 30), (30, 31), (31, 40)):
        mask = flashmask.FlashMask(causal=True, seqlen_q=stop - start, seqlen_k=stop)
        part = model(tokens[:, start:stop], positions[:, start:stop], mask, caches=caches)
        torch.testing.assert_close(part, whole[:, start:stop], atol=1e-3, rtol=1e-3)

    texts = [write(model, "def ", 30, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("def ") for text in texts)


def run(*options):
    command = [sys.executable, str(EXAMPLES / "train_packed_lm.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_flex_says_that_it_cannot_train():
    done = run("--attention", "flex")
    assert done.returncode == 1
    assert "FlexAttention has no backward on CPU" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_quick_run_writes_everything(tmp_path):
    done = run("--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    assert re.search(r"held-out loss +\d\.\d+ nats", done.stdout)
    assert {path.name for path in tmp_path.iterdir()} == {
        "loss.png",
        "mask.png",
        "results.json",
        "speed.png",
    }
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {row["kind"]: row for row in results["comparison"]}
    assert set(rows) == {"flashmask", "sdpa", "loop", "flex"}
    assert rows["flex"]["both"] is None
    assert rows["flashmask"]["bytes"] < rows["sdpa"]["bytes"]
