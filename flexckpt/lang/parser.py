# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Text to tree; lark parses every distinct sequence of token kinds once, to be fast."""

import functools
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

from lark import Lark, Token, Tree, UnexpectedToken
from lark.lexer import Lexer

from flexckpt.errors import AoaError
from flexckpt.lang.attributes import MAX_COUNT, checked, flag_of
from flexckpt.lang.tree import Attribute, Misplaced, Name, Span, Statement, Text

# A statement begins with a name that follows one of these; inside it they never stand side by side.
_ENDERS = frozenset({"NAME", "STRING", "SUFFIX", "NUMBER", "RBRACKET"})
_BEGINNERS = frozenset({"NAME", "STRING"})
_NOT_TOKENS = frozenset({"BLANK", "COMMENT", "BAD"})
_LONG = 256  # tokens of an entry that is probably not like any other
_MAX_DIGITS = 18  # of a number: it fits a signed 64-bit integer
_MAX_PLANS = 4096  # distinct sequences of kinds that are kept

_SAID = {
    "NAME": "a name",
    "STRING": "a quoted string",
    "SUFFIX": "a suffix",
    "NUMBER": "a number",
    "ARROW": "'->'",
    "EQUAL": "'='",
    "COLON": "':'",
    "LBRACKET": "'['",
    "RBRACKET": "']'",
    "COMMA": "','",
    "$END": "the end of the statement",
}


class Lexeme(NamedTuple):
    kind: str
    text: str
    start: int
    stop: int


class NamePlan(NamedTuple):
    """Which tokens of a statement make up a name."""

    name: int
    array: tuple[int, int] | None
    suffix: int | None
    last: int


class Plan(NamedTuple):
    """Which tokens of a statement are what: one plan for all with the same sequence of kinds."""

    left: tuple[NamePlan, ...]
    right: tuple[NamePlan, ...]
    attributes: tuple[tuple[int, tuple[int, ...], bool], ...]  # key, tokens of the value, is a list


class _Kinds(Lexer):
    """Feeds lark the kinds of tokens that were cut before; the value of a token is its position."""

    def __init__(self, conf: Any) -> None:
        pass

    def lex(self, kinds: Sequence[str]) -> Iterator[Token]:  # type: ignore[override]
        for i, kind in enumerate(kinds):
            yield Token(kind, str(i))


@functools.cache
def _lark() -> tuple[Lark, re.Pattern[str]]:
    """The parser, and one regular expression of all terminals of the grammar."""
    grammar = resources.files("flexckpt.lang").joinpath("grammar.lark").read_text("utf-8")
    lark = Lark(
        grammar,
        parser="lalr",
        lexer=_Kinds,
        start="statement",
        keep_all_tokens=True,
        maybe_placeholders=False,
    )
    kinds = [f"(?P<{t.name}>{t.pattern.to_regexp()})" for t in lark.terminals]
    # Blanks before a token are part of its match: half as many matches.
    return lark, re.compile(f"[ \\t]*(?:{'|'.join(kinds)}|(?P<BAD>[^ \\t]))")


def parse(text: Text) -> list[Statement]:
    """The statements of a program.

    Raises:
        AoaError: AOA101 to AOA104, where the text is not a program.
    """
    statements: list[Statement] = []
    for entry in range(len(text.entries)):
        tokens = _cut(text, entry)
        kinds = tuple([token[0] for token in tokens])
        if not _NOT_TOKENS.isdisjoint(kinds):
            tokens = _sifted(text, entry, tokens)
            kinds = tuple([token[0] for token in tokens])
        ends = _ends_cached(kinds) if len(kinds) <= _LONG else _ends(kinds)
        begin = 0
        for end in ends:
            number = len(statements)
            if begin or end < len(kinds):
                statements.append(
                    _statement(text, entry, number, tokens[begin:end], kinds[begin:end])
                )
            else:
                statements.append(_statement(text, entry, number, tokens, kinds))
            begin = end
    return statements


def _ends(kinds: tuple[str, ...]) -> list[int]:
    """Where the statements of an entry end."""
    ends = [i for i in range(1, len(kinds)) if kinds[i] in _BEGINNERS and kinds[i - 1] in _ENDERS]
    return [*ends, len(kinds)] if kinds else []


_ends_cached = functools.lru_cache(_MAX_PLANS)(_ends)


def _cut(text: Text, entry: int) -> list[Lexeme]:
    """All that the grammar's terminals match, one after another."""
    new, found = tuple.__new__, _lark()[1].finditer(text.entries[entry])
    # One alternative of the expression has matched: lastgroup and lastindex are those.
    return [new(Lexeme, (m.lastgroup, m[m.lastindex], *m.span(m.lastindex))) for m in found]  # type: ignore


def _sifted(text: Text, entry: int, found: list[Lexeme]) -> list[Lexeme]:
    """The tokens without newlines and comments."""
    for token in found:
        if token.kind == "BAD":
            hint = "quote names with other characters"
            if token.text in "'\"":
                hint = "close the quotes"
            message = f"{token.text!r} cannot start or continue anything here; {hint}"
            raise text.error("AOA101", message, entry, Span(token.start, token.stop))
    return [token for token in found if token.kind not in _NOT_TOKENS]


@functools.lru_cache(_MAX_PLANS)
def _plan(kinds: tuple[str, ...]) -> Plan:
    """What lark makes of a sequence of kinds."""
    tree: Any = _lark()[0].parse(kinds)
    names = [c for c in tree.children if isinstance(c, Tree) and c.data == "names"]
    rest = [c for c in tree.children if isinstance(c, Tree) and c.data == "attributes"]
    left, right = (tuple(_name_plan(n) for n in _chain(c)) for c in names)
    attributes = []
    for attribute in _chain(rest[0]) if rest else []:
        key, _, value = attribute.children
        tokens: list[Any] = value.children if isinstance(value, Tree) else [value]
        numbers = tuple(int(t) for t in tokens if t.type in ("NUMBER", "STRING"))
        attributes.append((int(key), numbers, isinstance(value, Tree)))
    return Plan(left, right, tuple(attributes))


def _chain(tree: Any) -> list[Any]:
    """The members of a left-recursive list."""
    members = []
    while True:
        members.append(tree.children[-1])
        if len(tree.children) == 1:
            return members[::-1]
        tree = tree.children[0]


def _leaves(tree: Any) -> list[Any]:
    return list(tree.children)


def _name_plan(tree: Any) -> NamePlan:
    array, suffix, last = None, None, int(tree.children[0])
    for child in tree.children[1:]:
        if isinstance(child, Tree):
            low, high, last = (int(_leaves(child)[i]) for i in (1, 3, 4))
            array = low, high
        else:
            suffix = last = int(child)
    return NamePlan(int(tree.children[0]), array, suffix, last)


def _statement(
    text: Text, entry: int, index: int, tokens: list[Lexeme], kinds: tuple[str, ...]
) -> Statement:
    span = Span(tokens[0].start, tokens[-1].stop)
    try:
        plan = _plan(kinds)
    except UnexpectedToken as error:
        raise _unexpected(text, entry, index, tokens, error) from None
    try:
        left = tuple([_name(p, tokens) for p in plan.left])
        right = tuple([_name(p, tokens) for p in plan.right])
        for name in right:
            if name.transposed:
                message = f"{name.text}^T is read, not written: transpose on the left"
                raise Misplaced("AOA203", message, name.span)
        flag = None
        if len(right) > 1 or "fused" in right[0].text:
            right, flag = flag_of(right)
        attributes: tuple[Attribute, ...] = ()
        if plan.attributes:
            attributes = checked(tuple([_attribute(p, tokens) for p in plan.attributes]), flag)
    except Misplaced as error:
        raise text.error(error.code, error.message, entry, error.span, statement=index) from None
    return Statement(index, entry, span, left, right, flag, attributes)


def _name(plan: NamePlan, tokens: list[Lexeme]) -> Name:
    kind, text, start, stop = tokens[plan.name]
    quoted = kind == "STRING"
    if plan.last == plan.name and not quoted:
        name = Name(text, Span(start, stop))
        return _transposed(name) if "^" in text else name
    span = Span(start, tokens[plan.last].stop)
    if quoted:
        text = text[1:-1]
        if not text:
            raise Misplaced("AOA102", "a name is empty", span)
    array = None
    if plan.array:
        low, high = (_number(tokens[i]) for i in plan.array)
        if not 0 <= low < high:
            raise Misplaced("AOA104", f"the range [{low}:{high}] of an array is empty", span)
        if high - low > MAX_COUNT:
            raise Misplaced("AOA104", f"an array has at most {MAX_COUNT} names", span)
        array = low, high
    suffix = tokens[plan.suffix].text if plan.suffix is not None else ""
    if plan.suffix is not None and tokens[plan.suffix].start != tokens[plan.suffix - 1].stop:
        raise Misplaced("AOA102", f"{suffix!r} must follow its name without a blank", span)
    return _transposed(Name(text, span, False, array, suffix, quoted))


def _transposed(name: Name) -> Name:
    """Take ``^T`` off the end of a name."""
    last = name.suffix or name.text
    if not last.endswith("^T"):
        return name
    rest = last[:-2]
    if rest.endswith("^T"):
        raise Misplaced("AOA203", f"{last!r} is transposed twice: write the name alone", name.span)
    if name.suffix:
        return name._replace(suffix=rest, transposed=True)
    return Name(rest, name.span, True, name.array, "", name.quoted)


def _attribute(plan: tuple[int, tuple[int, ...], bool], tokens: list[Lexeme]) -> Attribute:
    key, values, is_list = plan
    first, last = tokens[key], tokens[key + 2]
    raw = last.text
    value: int | str | tuple[int, ...]
    if is_list:
        value = tuple([_number(tokens[i]) for i in values])
        raw = f"[{','.join(str(n) for n in value)}]"
        last = tokens[values[-1] + 1] if values else tokens[key + 3]
    elif last.kind == "NUMBER":
        value = _number(last)
    else:
        value = raw[1:-1]
    return Attribute(first.text, value, Span(first.start, last.stop), raw)


def _number(token: Lexeme) -> int:
    if len(token.text) > _MAX_DIGITS:
        raise Misplaced(
            "AOA104",
            f"a number has at most {_MAX_DIGITS} digits",
            Span(token.start, token.stop),
        )
    return int(token.text)


def _unexpected(
    text: Text, entry: int, index: int, tokens: list[Lexeme], error: UnexpectedToken
) -> AoaError:
    """A sentence for a token that lark did not expect."""
    wanted = sorted(_SAID[kind] for kind in error.expected if kind in _SAID)
    if error.token.type == "$END":
        at, found = tokens[-1], "the statement ends"
    else:
        at = tokens[int(error.token)]
        found = f"{at.text[:80]!r} stands"
    message = f"{found} where {' or '.join(wanted)} was expected"
    if at.kind == "NAME" and "STRING" in error.expected and "LBRACKET" in error.expected:
        message += "; put the value in quotes"
    return text.error("AOA102", message, entry, Span(at.start, at.stop), statement=index)
