# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The decoders of the page undo what the packer does, for all that fits into its numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vmm.sim.trace import from_events
from vmm.view.pack import MAX_EXACT, encode

LIMIT = MAX_EXACT - 1
COLUMNS = {
    "same": [7] * 50,
    "none": [],
    "bytes": [i % 200 for i in range(4000)],
    "few large": [2**47 - 512 * (i % 9) for i in range(4000)],
    "many values": [i % 3000 for i in range(30000)],
    "limits": [LIMIT, 0, LIMIT, 1, 127, 128, 16383, 16384, 2**31 - 1, 2**31, 2**32],
    "signs": [0, -1, 1, -LIMIT // 2, LIMIT // 2, -64, 63, -65, 64],
    "times": [i * 997 + (i % 5) for i in range(1000)],
}


@pytest.fixture
def decode(show: Any) -> Any:
    opened = show(from_events([(0, "a", 0, 1)]))

    def decoded(values: list[int]) -> list[int]:
        description, body = encode(np.array(values, dtype=np.int64))
        script = (
            f"[...vmmView.decodeColumn({json.dumps(description)}, new Uint8Array({list(body)}))]"
        )
        return [int(value) for value in opened.page.evaluate(script)]

    return decoded


def test_columns_come_back(decode: Any) -> None:
    for name, values in COLUMNS.items():
        assert decode(values) == values, name


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(st.integers(-LIMIT // 2, LIMIT // 2) | st.integers(-300, 300)))
def test_any_column_comes_back(decode: Any, values: list[int]) -> None:
    assert decode(values) == values


def test_a_number_that_the_page_cannot_count_is_refused() -> None:
    with pytest.raises(ValueError, match=f"a column holds 0 to {MAX_EXACT}"):
        encode(np.array([0, MAX_EXACT]))


def test_each_codec_is_used() -> None:
    codecs = {encode(np.array(values, dtype=np.int64))[0]["codec"] for values in COLUMNS.values()}
    assert codecs == {"same", "u8", "u16", "varint", "delta"}
