"""Every small change of a module that still compiles, each a line's text before and after."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_DELETED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True, slots=True)
class Change:
    """``old``, the source at these offsets of the file, becomes ``new``.

    ``function`` and ``statement``: of which it is a part, as ``places`` says.
    """

    file: str
    function: str
    statement: int
    line: int
    start: int
    stop: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """What it is, wherever in the file it stands."""

        def short(text: str) -> str:
            text = " ".join(text.split())
            return text if len(text) <= 70 else f"{text[:67]}..."

        return f"{self.file}: {short(self.old)} -> {short(self.new)}"

    def __str__(self) -> str:
        return f"line {self.line} of {self.name}"

    @property
    def row(self) -> tuple[str | int, ...]:
        """All of it, to be written down."""
        return astuple(self)

    def applied(self, source: bytes) -> bytes:
        """The source with this change."""
        assert source[self.start : self.stop] == self.old.encode(), self
        return source[: self.start] + self.new.encode() + source[self.stop :]


def changes_of(root: Path, file: str) -> list[Change]:
    """All changes of a module's functions; docstrings, annotations and logging are left alone."""
    source = (root / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    where = dict(places(tree))
    found = []
    for node in _executed(tree):
        for changed in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            new = ast.unparse(ast.fix_missing_locations(changed))
            if not isinstance(node, ast.stmt):
                new = f"({new})"
            old = source[start:stop].decode()
            found.append(Change(file, *where[node], node.lineno, start, stop, old, new))
    return found


def places(
    node: ast.AST, function: str = "", first: int = 0, statement: int = 0
) -> Iterator[tuple[ast.AST, tuple[str, int]]]:
    """The function and the statement of which each node is a part, or which it is: so many lines
    below the function's first one, for what is written elsewhere in the file does not matter."""
    if isinstance(node, ast.stmt):
        statement = node.lineno - first
    yield node, (function, statement)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function, first = f"{function}.{node.name}".lstrip("."), node.lineno
    for child in ast.iter_child_nodes(node):
        yield from places(child, function, first, statement)


def _executed(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Statements and expressions inside functions, in the order of the source."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside |= {part for statement in node.body for part in ast.walk(statement)}
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        notes = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if notes is not None:
            skipped |= set(ast.walk(notes))
        says_only = isinstance(node, ast.Expr) and _says_only(node.value)
        # Python 3.11 gives the parts of an f-string no places of their own.
        if says_only or isinstance(node, ast.JoinedStr):
            skipped |= set(ast.walk(node))
    chosen = [node for node in inside - skipped if isinstance(node, ast.expr | ast.stmt)]
    yield from sorted(chosen, key=lambda node: (node.lineno, node.col_offset, type(node).__name__))


def _says_only(value: ast.expr) -> bool:
    """Whether it does nothing: a docstring, a log line, what only the type checker looks at."""
    match value:
        case ast.Constant() | ast.Call(func=ast.Name(id="assert_never")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="_logger"))):
            return True
    return False


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[one]) if type(one) in _COMPARED:
            changed.ops = [_COMPARED[type(one)]()]
            yield changed
        case ast.BoolOp(op=op, values=values):
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield changed
            for i in range(len(values)):
                left = [value for n, value in enumerate(values) if n != i]
                yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)  # type: ignore[union-attr]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op) if type(op) in _COMPUTED:
            changed.op = _COMPUTED[type(op)]()
            yield changed
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Return(value=ast.Constant(value=None | False | "")):
            pass  # the same to whoever asks whether it is so
        case ast.Return(value=value) if value and not any(map(_is_super, ast.walk(value))):
            yield ast.Return(None)
        case ast.stmt() if isinstance(changed, _DELETED):
            if not any(map(_makes_the_function, ast.walk(changed))):
                yield ast.Pass()


def _makes_the_function(part: ast.AST) -> bool:
    """Whether the function is of another kind without it: a generator, or one that has a class."""
    return _is_super(part) or isinstance(part, ast.Yield | ast.YieldFrom)


def _is_super(part: ast.AST) -> bool:
    return isinstance(part, ast.Name) and part.id == "super"
