# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""AOA, the mapping language: text to a program, a variable per destination."""

from flexckpt.lang.compile import compile_program, expand_program
from flexckpt.lang.inverse import invert
from flexckpt.lang.program import Program

__all__ = ["Program", "compile_program", "expand_program", "invert"]
