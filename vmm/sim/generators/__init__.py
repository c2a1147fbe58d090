# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Modelled workloads: the memory traces that training and serving would give, from a seed.

Each is one module with a dataclass of parameters and ``generate(parameters) -> Trace``. All sizes
are those of tensors; times come from a roofline whose figures are parameters too, and the trace
carries all parameters in its header. `registry` has them by name.
"""
