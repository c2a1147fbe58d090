# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The text of a configuration: spaces, sizes, and what is refused with which words."""

import pytest

import vmm


def test_spaces_and_units():
    with vmm.Allocator(" limit : 1GiB , page:4m,driver: null ") as allocator:
        stats = allocator.stats()
    assert stats["limit_bytes"] == 1 << 30
    assert stats["page_size"] == 4 << 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits:1GiB", "there is no key 'limits'. Keys: .*limit"),
        ("limit:1MiB", "limit must be at least a page, 2097152, or 0 for none, but is 1048576"),
        ("limit:-1", "limit must be a size such as 512, 20MiB or 1.5GiB, but is '-1'"),
        ("limit:1 GiB per day", "limit must be a size .* but is '1 GiB per day'"),
        ("fraction:1.5", "fraction must be a number from 0.* to 1.*, but is '1.5'"),
        ("policy:best", "policy must be one of create_first steal_first, but is 'best'"),
        ("page:5000", "page must be a multiple of 4096, but is 5000"),
        ("fail:(create@1:oom", "a parenthesis is not closed in 'fail:.create@1:oom'"),
        ("check:3", "check must be a whole number from 0 to 2, but is '3'"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(vmm.Invalid, match=words):
        vmm.Allocator(text)
