# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Modules import only what DESIGN.md allows them to."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.house.project import PACKAGES, ROOT

# What the modules of flexckpt stand on: words, geometry, and the shape of a checkpoint.
GEOMETRY = {"flexckpt.boxes", "flexckpt.pieces", "flexckpt.states"}
MODEL = {*GEOMETRY, "flexckpt.errors", "flexckpt.codes", "flexckpt.model"}

# The rooms of flexckpt that the parts of a load or a save are made of.
ROOMS = {*MODEL, "flexckpt.index", "flexckpt.lang", "flexckpt.plan", "flexckpt.io", "flexckpt.comm"}
PARTS = {
    "flexckpt.collect",
    "flexckpt.execute",
    "flexckpt.export",
    "flexckpt.forked",
    "flexckpt.layout",
    "flexckpt.memory_index",
    "flexckpt.replicas",
    "flexckpt.save_mapped",
    "flexckpt.saving",
    "flexckpt.schedule_cache",
    "flexckpt.shared_folder",
    "flexckpt.snapshot",
    "flexckpt.transfer",
    "flexckpt.tied",
    "flexckpt.twins",
}

# Module -> what it may import beside the standard library and torch. A name stands for the module
# and everything below it. The longest matching row counts; a module without a row fails.
ALLOWED = {
    "flashmask": {"flashmask"},
    "flashmask.api": {
        "flashmask.validation",
        "flashmask.backends",
        "flashmask.ops",
        "flashmask.mask",
    },
    "flashmask.backends": {"flashmask.native", "flashmask.impl"},
    "flashmask.impl": {"flashmask.native"},
    "flashmask.impl.reference": {"flashmask.mask.lowering", "flashmask.mask.dense"},
    "flashmask.interop": {"flashmask.api", "flashmask.mask", "transformers"},
    "flashmask.mask": {"flashmask.mask"},
    "flashmask.masks": {"flashmask.mask"},
    "flashmask.native": {"flashmask._C"},
    "flashmask.ops": {
        "flashmask.impl.reference",
        "flashmask.native",
        "flashmask.plan_shape",
        "flashmask.validation",
    },
    "flashmask.plotting": {"flashmask.mask", "matplotlib", "numpy"},
    "flashmask.plan_shape": set(),
    "flashmask.sentences": set(),
    "flashmask.validation": {"flashmask.plan_shape", "flashmask.sentences"},
    "flexckpt": {"flexckpt"},
    "flexckpt.__main__": {"flexckpt.cli"},
    "flexckpt.api": {*ROOMS, *PARTS, "flexckpt.wording", "xxhash"},
    "flexckpt.boxes": set(),
    "flexckpt.cli": {"flexckpt.api", *MODEL, "flexckpt.index", "flexckpt.io", "flexckpt.wording"}
    | {"flexckpt.recipes", "rich"},
    "flexckpt.codes": set(),
    "flexckpt.collect": {*MODEL, "flexckpt.comm", "flexckpt.layout", "flexckpt.plan.targets"},
    "flexckpt.comm": {"flexckpt.errors", "xxhash"},
    "flexckpt.errors": {"flexckpt.codes"},
    "flexckpt.execute": {*MODEL, "flexckpt.io.ranged", "flexckpt.plan"},
    "flexckpt.export": {*ROOMS, "flexckpt.execute", "flexckpt.shared_folder", "flexckpt.transfer"},
    "flexckpt.forked": {"flexckpt.errors", "flexckpt.io"},
    "flexckpt.index": {"flexckpt.boxes", "flexckpt.model", "flexckpt.quiet_gc", "flexckpt.states"},
    "flexckpt.interop": {
        *MODEL,
        "flexckpt.api",
        "flexckpt.collect",
        "flexckpt.comm",
        "flexckpt.index",
        "flexckpt.io",
        "flexckpt.recipes",
        "flexckpt.shared_folder",
        "deepspeed",
        "transformers",
    },
    "flexckpt.io": {
        *MODEL,
        "flexckpt.index",
        "flexckpt.plan.ownership",
        "flexckpt.quiet_gc",
        "safetensors",
        "xxhash",
    },
    "flexckpt.lang": {*MODEL, "flexckpt.quiet_gc", "lark"},
    "flexckpt.layout": MODEL,
    "flexckpt.memory_index": {*ROOMS, "flexckpt.execute", "flexckpt.transfer"},
    "flexckpt.model": {*GEOMETRY, "flexckpt.errors"},
    "flexckpt.pieces": {"flexckpt.boxes"},
    "flexckpt.plan": {*MODEL, "flexckpt.index", "flexckpt.quiet_gc"},
    "flexckpt.quiet_gc": set(),
    "flexckpt.recipes": {"flexckpt.errors"},
    "flexckpt.replicas": {*ROOMS, "flexckpt.execute", "flexckpt.transfer", "xxhash"},
    "flexckpt.save_mapped": {*ROOMS, *PARTS, "flexckpt.api.like"},
    "flexckpt.saving": {"flexckpt.comm", "flexckpt.execute"},
    "flexckpt.schedule_cache": {"flexckpt.comm", "xxhash"},
    "flexckpt.shared_folder": {"flexckpt.comm", "flexckpt.io"},
    "flexckpt.snapshot": {"flexckpt.model"},
    "flexckpt.states": set(),
    "flexckpt.testing": {*ROOMS, *PARTS, "flexckpt.api"},
    "flexckpt.transfer": {*MODEL, "flexckpt.comm", "flexckpt.execute", "flexckpt.plan"},
    "flexckpt.tied": MODEL,
    "flexckpt.twins": {*ROOMS, "flexckpt.execute", "flexckpt.export", "flexckpt.transfer"},
    "flexckpt.wording": set(),
    "vmm": {"vmm"},
    "vmm.__main__": {"vmm.cli"},
    "vmm.allocator": {"vmm.errors", "vmm.native", "numpy"},
    "vmm.cli": {"vmm.errors", "vmm.sim", "vmm.view", "numpy", "rich"},
    "vmm.errors": set(),
    "vmm.native": {"vmm.errors"},
    "vmm.observe": {
        "vmm.allocator",
        "vmm.errors",
        "vmm.native",
        "vmm.sim",
        "vmm.torch_hooks",
        "matplotlib",
        "numpy",
        "rich",
    },
    "vmm.sim": {"vmm.allocator", "vmm.errors", "vmm.native", "numpy", "rich"},
    "vmm.torch_hooks": {"vmm.allocator", "vmm.errors", "vmm.native", "vmm.observe"},
    "vmm.view": {"vmm.errors", "vmm.sim", "numpy", "rich"},
}

# The packages themselves, and only these, may import one another as DESIGN.md says.
BETWEEN_PACKAGES: dict[str, set[str]] = {package: set() for package in PACKAGES}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for name in PACKAGES for path in (ROOT / name).rglob("*.py")}


def is_module(name: str) -> bool:
    return name in MODULES or name == "flashmask._C"


def imports(name: str) -> set[str]:
    """Every module that `name` imports anywhere, also inside functions and under TYPE_CHECKING."""
    found = set()
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if is_module(full) else base)
    return found


def below(name: str, top: str) -> bool:
    return name == top or name.startswith(top + ".")


def row_for(name: str) -> str:
    return max((row for row in ALLOWED if below(name, row)), key=len)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_imports_only_what_it_may(name):
    row = row_for(name)
    assert row == name or row not in PACKAGES, f"{name} needs a row in ALLOWED"
    for imported in imports(name):
        top = imported.partition(".")[0]
        if top in sys.stdlib_module_names or top == "torch":
            continue
        # A package below its own row may always import its parts.
        allowed = ALLOWED[row] | ({row} if row not in PACKAGES else set())
        assert any(below(imported, one) for one in allowed), f"{name} may not import {imported}"


def test_rows_are_not_stale():
    assert [row for row in ALLOWED if row not in MODULES] == []


def test_only_the_front_imports_api():
    users = {name for name in MODULES if "flashmask.api" in imports(name)}
    assert users <= {"flashmask"} | {name for name in users if below(name, "flashmask.interop")}


def test_packages_know_torch_and_not_one_another():
    for name in MODULES:
        own = name.partition(".")[0]
        others = {one.partition(".")[0] for one in imports(name)} & set(PACKAGES) - {own}
        assert others <= BETWEEN_PACKAGES[own], f"{name} may not import {others}"


CSRC = {path.name: path.read_text() for path in (ROOT / "flashmask" / "csrc").iterdir()}


def included(name: str) -> set[str]:
    """The files of csrc that `name` includes, directly or not."""
    found: set[str] = set()
    todo = [name]
    while todo:
        direct = set(re.findall(r'^#include "(.+)"', CSRC[todo.pop()], re.M))
        todo += direct - found
        found |= direct
    return found


def test_only_stable_abi_h_includes_torch():
    torch_include = re.compile(r"^#include <(torch|ATen|c10)/", re.M)
    assert {name for name, text in CSRC.items() if torch_include.search(text)} == {"stable_abi.h"}


def test_only_ops_cpp_sees_torch():
    units = {name for name in CSRC if name.endswith(".cpp")}
    assert {name for name in units if "stable_abi.h" in included(name)} == {"ops.cpp"}


def test_design_names_every_row():
    design = (ROOT / "DESIGN.md").read_text()
    for row in ALLOWED:
        word = row.rpartition(".")[2]
        assert word in design, f"DESIGN.md does not mention {row}"
