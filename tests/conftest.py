# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What every test gets: a fixed seed, and a skip with its reason where the hardware is missing."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="torch finds no CUDA device here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(no_gpu)
