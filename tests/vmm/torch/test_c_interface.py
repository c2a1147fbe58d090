# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The core serves a device backend that is written in C and was never linked to it."""

from tests.vmm.torch.compiling import CORE, build, needs, needs_core, run


@needs("gcc")
@needs_core
def test_a_backend_in_c_allocates_through_the_table(tmp_path):
    program = build("contract.c", tmp_path / "contract", "-std=c11")
    assert run(program, str(CORE[0])) == "ok\n"
