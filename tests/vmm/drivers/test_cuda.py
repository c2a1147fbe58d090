# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The cuda driver over a libcuda without a GPU, and our declarations against those of NVIDIA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vmm.drivers import fake_cuda
from tests.vmm.drivers.driver import library

ROOT = fake_cuda.HERE.parents[2]
CASES = [
    "opening",
    "the_thread_is_left_as_it_was",
    "how_pages_are_made",
    "errors",
    "a_lost_device",
    "streams_and_events",
    "copies_wait_for_all_work",
    "an_allocator_lives_on_it",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library()  # skips where it is not built
    folder = tmp_path_factory.mktemp("fake")
    fake_cuda.build(folder)
    return folder


def run(*command: str, folder: Path, **more: str) -> None:
    environment = fake_cuda.environment(folder, **more)
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_over_a_libcuda_without_a_gpu(folder: Path, case: str) -> None:
    run("-m", "tests.vmm.drivers.cuda_cases", case, folder=folder, FAKE_PROC_ADDRESS="1")


def test_the_contract_of_all_drivers(folder: Path) -> None:
    file = "tests/vmm/drivers/test_contract.py"
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", file)
    run(*command, folder=folder, VMM_CONTRACT_DRIVERS="cuda")


def test_without_a_libcuda_there_is_a_sentence(tmp_path: Path) -> None:
    library()
    (tmp_path / "libcuda.so.1").write_text("no library")  # whatever the machine has
    program = (
        "from tests.vmm.drivers.driver import Driver, Refused\n"
        "try:\n    Driver(driver='cuda')\n"
        "except Refused as refused:\n    print(refused.reason)\n"
    )
    environment = fake_cuda.environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith("driver:cuda needs libcuda.so.1 of the NVIDIA driver: ")
    assert "libcuda.so.1: " in done.stdout.partition("driver: ")[2]


def header_folders() -> list[Path]:
    folders = [
        Path(value) / "include"
        for name in ("CUDA_HOME", "CUDA_PATH")
        if (value := os.environ.get(name))
    ]
    folders += sorted(Path("/usr/local").glob("cuda*/include"))
    site = Path(pytest.__file__).parents[1] / "nvidia"  # wheels of NVIDIA
    folders += sorted(site.glob("*/include"))
    found = {folder.resolve() for folder in folders if (folder / "cuda.h").exists()}
    return sorted(found)


def test_our_declarations_are_those_of_nvidia() -> None:
    folders = header_folders()
    if not folders:
        pytest.skip("there is no cuda.h on this machine")
    source = fake_cuda.HERE / "cuda_header_agrees.cpp"
    for folder in folders:
        flags = ["-std=c++20", "-fsyntax-only", "-I", fake_cuda.INCLUDE, "-isystem", folder]
        command = [fake_cuda.compiler(), *flags, source]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
