# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Facts about the project that several house tests need."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Every import package of the distribution. A new one is one more word here.
PACKAGES = ("flashmask", "flexckpt", "vmm")

# What may be absent from a user's environment. No package may import one of these by itself.
OPTIONAL = ("deepspeed", "matplotlib", "pytest", "transformers", "triton")

# What is always there, but slow to import: loaded on first use.
ON_FIRST_USE = ("lark", "numpy", "rich", "safetensors", "xxhash")

NATIVE_MODULE = ROOT / "flashmask" / "_C.abi3.so"
