# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The wheel, installed in a clean environment with the sources out of sight, does its work."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.house.project import NATIVE_MODULE, PACKAGES, ROOT

pytestmark = pytest.mark.skipif(not NATIVE_MODULE.exists(), reason="built with BUILD_NATIVE=0")

EXTRAS = {"all", "deepspeed", "demo", "dev", "plot", "test", "transformers", "triton"}

USE = """
import sys
from importlib.metadata import metadata
from pathlib import Path

import torch

import flashmask

prefix = Path(sys.prefix).resolve()
assert Path(flashmask.__file__).resolve().is_relative_to(prefix), flashmask.__file__
assert set(metadata("paddle-on-torch").get_all("Provides-Extra")) == {extras}

torch.manual_seed(0)
query, key, value = (torch.randn(2, 100, 3, 32, requires_grad=True) for _ in range(3))
out = flashmask.flashmask_attention(query, key, value, causal=True, backend="cpu")

scores = torch.einsum("bqhd,bkhd->bhqk", query.double(), key.double()) / 32**0.5
hidden = torch.ones(100, 100, dtype=torch.bool).triu(1)
weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
expected = torch.einsum("bhqk,bkhd->bqhd", weights, value.double())
torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)

import flexckpt
from flexckpt import recipes

fused = flexckpt.transform({{"a": value[0], "b": key[0]}}, "a, b -> c, axis=0")
assert torch.equal(fused["c"], torch.cat([value[0], key[0]]))
assert recipes.names()

import vmm

with vmm.Allocator(driver="host", device_bytes="64MiB", check=2) as allocator:
    blocks = [allocator.alloc(6 << 20) for _ in range(10)]
    for block in blocks[::2]:
        allocator.free(block)
    assert allocator.alloc(30 << 20)  # of free pages that lay apart
    stats = allocator.stats()
    assert stats["steals.move"] + stats["steals.alias"] >= 10
try:
    vmm.enable(device="cpu")
except vmm.Unsupported as error:
    assert "torch" in str(error)
else:
    raise AssertionError("the wheel has no hook for CPU tensors")

inputs = (query, key, value)
for ours, theirs in zip(
    torch.autograd.grad(out.square().sum(), inputs),
    torch.autograd.grad(expected.square().sum(), inputs),
):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    # Nothing of this process's Python may show the new environment the way to the sources.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


DATA = (".aoa", ".css", ".html", ".js", ".lark")  # what packages read at run time, beside code


def data_files() -> set[str]:
    paths = (path for one in PACKAGES for path in (ROOT / one).rglob("*"))
    return {path.relative_to(ROOT).as_posix() for path in paths if path.suffix in DATA}


def copy_sources(to: Path) -> None:
    """Copies the sources, with the object files that are still good."""
    unwanted = (".*", "dist", "demo_out", "*.so", "*.egg-info", "__pycache__", "lib*", "bdist*")
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*unwanted))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder / "source")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    run(*pip, "wheel", *flags, ".", cwd=folder / "source", PORTABLE="1")
    shutil.rmtree(folder / "source")
    (path,) = folder.glob("*.whl")
    return path


def test_name_promises_every_python_from_the_floor(wheel):
    assert wheel.name.startswith("paddle_on_torch-")
    assert "-cp310-abi3-" in wheel.name


def test_content_is_the_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    sources = {
        path.relative_to(ROOT).as_posix() for one in PACKAGES for path in (ROOT / one).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == sources
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    # What fits only one version of torch is not in a wheel for all of them.
    libraries = {name for name in names if name.endswith(".so")}
    assert libraries == {"flashmask/_C.abi3.so", "vmm/_core.abi3.so"}
    assert {name for name in names if name.endswith(DATA)} == data_files()
    # The C interface is for others to compile against; no other source travels.
    assert [name for name in names if name.endswith((".cpp", ".h"))] == ["vmm/csrc/vmm.h"]


def test_source_distribution_has_all_that_a_build_needs(tmp_path):
    copy_sources(tmp_path / "source")
    run(sys.executable, "setup.py", "--quiet", "sdist", cwd=tmp_path / "source")
    (path,) = (tmp_path / "source" / "dist").glob("paddle_on_torch-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    code = (path for one in PACKAGES for path in (ROOT / one).rglob("*"))
    wanted = [path for path in code if path.suffix in (".py", ".cpp", ".h", ".typed", *DATA)]
    wanted += [ROOT / name for name in ("setup.py", "pyproject.toml", "constraints.txt", "LICENSE")]
    wanted += [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]  # README.md links to them
    assert {path.relative_to(ROOT).as_posix() for path in wanted} - names == set()


def test_wheel_works_in_a_clean_environment(wheel, tmp_path):
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)

    # torch is seen through a .pth file, which comes after the environment's own packages and does
    # not read the .pth files found there, among them that of an editable install.
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", query, cwd=tmp_path).strip())
    (site / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")

    run(python, "-I", "-c", USE.format(extras=EXTRAS), cwd=tmp_path)
