# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""One compilation: expand, lower, run, and find what every destination gets."""

import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from flexckpt.errors import AoaError
from flexckpt.lang.counts import Counter
from flexckpt.lang.engine import Engine
from flexckpt.lang.expand import Expander, Group
from flexckpt.lang.lower import Batch, Lowering
from flexckpt.lang.names import Index
from flexckpt.lang.program import Program
from flexckpt.lang.tree import Misplaced, Statement, Text
from flexckpt.model import TensorSpec, dtype_name
from flexckpt.pieces import Variable


def _complain(action: str, code: str, names: Sequence[str], message: str) -> None:
    if not names or action == "ignore":
        return
    text = message.format(names[0], names[0])
    if len(names) > 1:
        text += f" ({len(names)} in all: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''})"
    if action == "error":
        raise AoaError(code, text)
    warnings.warn(text, stacklevel=5)


class Run:
    """One compilation."""

    def __init__(
        self,
        text: Text,
        source: Mapping[str, TensorSpec],
        dest: Mapping[str, TensorSpec] | None,
        rules: Mapping[str, str],
        axis: int,
        lenient: bool = False,
        aim: str = "destination",
    ) -> None:
        self._text = text
        self._aim = aim  # what the user calls ``dest``
        self._source = source
        self._dest = dest
        self._rules = rules
        self._axis = axis
        self._lenient = lenient
        self._unmatched: list[str] = []
        self._batches: list[Batch] = []
        self._engine = Engine(source)

    def expand(self, statements: Sequence[Statement]) -> None:
        """From statements to batches."""
        expander = Expander(
            Index(self._source),
            None if self._dest is None else Index(self._dest),
            self._nothing,
            self._lenient,
        )
        groups: list[Group] = []
        for statement in statements:
            try:
                groups += expander.expand(statement)
            except Misplaced as problem:
                raise self._placed(statement, problem) from None
        lowering = Lowering(Counter(groups, self._source, self._dest), self._axis)
        for group in groups:
            try:
                self._batches += lowering.lower(group)
            except AoaError as error:
                raise self._located(error, group.statement) from None

    def execute(self, statements: Sequence[Statement]) -> None:
        """Expand the statements and run them."""
        self.expand(statements)
        engine = self._engine
        for batch in self._batches:
            try:
                engine.run(batch, self._lenient)
            except AoaError as error:
                row = batch._replace(rows=[engine.row])
                raise self._located(error, batch.statement, row) from None

    def finish(self) -> Program:
        engine = self._engine
        outputs, identity, missing = self._outputs()
        # What was read into a variable that nobody reads is lost like what was not read at all.
        useful = {p.source for v in outputs.values() for p in v.pieces}
        useful.update(p.source for p in engine.lost)
        useful.update(name for name in engine.used if 0 in self._source[name].shape)
        unexpected = [
            name
            for name in self._source
            if name not in useful and name not in engine.dropped and name not in identity
        ]
        kept = [n for n in engine.kept if n not in outputs]
        if self._dest is not None:
            kept = [n for n in kept if n in self._dest]
        program = Program(
            outputs,
            kept=frozenset(kept),
            dropped=frozenset(engine.dropped),
            identity=frozenset(identity),
            missing=tuple(missing),
            unexpected=tuple(unexpected),
            unmatched=tuple(self._unmatched),
            lost=engine.lost,
            text=self._text,
            batches=self._batches,
        )
        self.judge(program, self._rules)
        return program

    def judge(self, program: Program, rules: Mapping[str, str]) -> None:
        """Raise or warn about what is missing or unexpected."""
        message = "{} of the destination has no source"
        _complain(rules["missing"], "AOA306", program.missing, message)
        message = "{} of the source is used by nothing; write '{} -> _' to drop it"
        _complain(rules["unexpected"], "AOA308", program.unexpected, message)

    def finish_expanded(self) -> list[str]:
        return [line for batch in self._batches for line in batch.lines()]

    def _outputs(self) -> tuple[dict[str, Variable], set[str], list[str]]:
        """Outputs, those that pass as they are, and destinations that have no source."""
        engine, source = self._engine, self._source
        variables = engine.variables
        outputs: dict[str, Variable] = {}
        if self._dest is None:
            passing = {
                n
                for n in source
                if n not in engine.used and n not in engine.dropped and n not in variables
            }
            for name in source:
                if name in passing:
                    outputs[name] = engine.whole(name)
            for name, variable in variables.items():
                if name in engine.unread:
                    outputs[name] = variable
            return outputs, passing, []
        dest = self._dest
        outputs = {name: v for name, v in variables.items() if name in dest}
        identity: set[str] = set()
        missing: list[str] = []
        for name in dest:
            if name in outputs or name in engine.kept:
                continue
            if name not in source or name in engine.dropped or name in engine.gone:
                missing.append(name)
                continue
            outputs[name] = engine.whole(name)
            identity.add(name)
        dtypes = {spec.dtype for spec in dest.values() if spec.dtype is not None}
        said = {dtype: dtype_name(dtype) for dtype in dtypes}
        for name, (shape, dtype, pieces) in outputs.items():
            spec = dest[name]
            want = dtype if spec.dtype is None else said[spec.dtype]
            if shape != spec.shape or (dtype != want and dtype):
                self._misfit(name, outputs[name], spec)
            if dtype != want:  # it was not known
                outputs[name] = Variable(shape, want, pieces)
        return outputs, identity, missing

    def _misfit(self, name: str, variable: Variable, spec: TensorSpec) -> None:
        """Raise where a variable does not fit its destination."""
        shape = tuple(spec.shape)
        dtype = variable.dtype if spec.dtype is None else dtype_name(spec.dtype)
        if variable.shape != shape:
            code = "AOA304"
            message = (
                f"{name} has shape {shape} in the {self._aim}, but the program makes "
                f"{variable.shape}"
            )
        elif variable.dtype != dtype:
            code = "AOA303"
            message = (
                f"{name} is {dtype} in the {self._aim}, but the program makes {variable.dtype}; "
                f"cast it with dtype='{dtype}'"
            )
        else:
            return
        error = AoaError(code, message)
        for batch in reversed(self._batches):
            if batch.routine is None:
                continue
            for row in batch.rows:
                if name in row[1]:
                    raise self._located(error, batch.statement, batch._replace(rows=[row]))
        raise error

    def _nothing(self, statement: Statement, problem: Misplaced) -> None:
        """A pattern matches nothing."""
        action = self._rules["unmatched"]
        error = self._placed(statement, problem)
        if action == "error":
            raise error
        self._unmatched.append(error.message)
        if action == "warn":
            warnings.warn(str(error), stacklevel=2)

    def _placed(self, statement: Statement, problem: Misplaced) -> AoaError:
        return self._text.error(
            problem.code, problem.message, statement.entry, problem.span, statement=statement.number
        )

    def _located(
        self, error: AoaError, statement: Statement, batch: Batch | None = None
    ) -> AoaError:
        """The error with the place of a statement and what became of it."""
        message = error.message
        if error.code == "AOA301":
            name = message.split(" ", 1)[0]
            close = get_close_matches(name, list(self._source)[:5000], 1)
            if close:
                message += f"; did you mean {close[0]}?"
        expanded = None
        if batch is not None:
            lines = [line if len(line) <= 300 else line[:300] + " ..." for line in batch.lines()]
            shown = lines[:6] + (["..."] if len(lines) > 6 else [])
            expanded = "\n  ".join(shown)
        return self._text.error(
            error.code,
            message,
            statement.entry,
            statement.span,
            statement=statement.number,
            expanded=expanded,
        )
