"""Functions of this process get other code: that of a changed source, or code with marks in it.

A source that was imported stays imported, and whoever holds one of its functions goes on with it:
what is exchanged is the code inside the function.
"""

from __future__ import annotations

import ast
import builtins
import gc
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tests.mutation._mutator import places

_MARK = "__mark__"


Functions = dict[str, list[FunctionType]]


def functions_of(files: Iterable[Path]) -> Functions:
    """All functions that were imported from these files, by file: found once, in all objects."""
    found: Functions = {str(path): [] for path in files}
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # else these are not among the objects
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename in found:
            found[function.__code__.co_filename].append(function)
    if frozen:
        gc.freeze()
    return found


def exchange(functions: Functions, path: Path, source: str | ast.Module) -> None:
    """Of these functions, those of this file have the code of ``source`` now.

    It has to have the same functions in the same order; those inside them may be others.
    """
    name = str(path)
    old = _outermost(compile(path.read_text(encoding="utf-8"), name, "exec", dont_inherit=True))
    new = _outermost(compile(source, name, "exec", dont_inherit=True))
    codes = {_place(one): other for one, other in zip(old, new, strict=True)}
    for function in functions[name]:
        found = codes.get(_place(function.__code__))
        if found is not None:
            function.__code__ = found


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _outermost(code: CodeType) -> list[CodeType]:
    """The functions of a module and of its classes, in the order of the source."""
    return list(_functions(code))


def _functions(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            is_function = part.co_flags & inspect.CO_OPTIMIZED
            yield from (part,) if is_function else _functions(part)


class Marks:
    """Which statements of these files have been executed: file, function and statement, see
    ``places`` of _mutator."""

    def __init__(self, functions: Functions) -> None:
        self.places: list[tuple[str, str, int]] = []
        self._seen: set[int] = set()
        setattr(builtins, _MARK, self._seen.add)
        for path in map(Path, functions):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            self._mark(tree, {node: (str(path), *place) for node, place in places(tree)}, False)
            exchange(functions, path, ast.fix_missing_locations(tree))

    def take(self) -> list[int]:
        """Those since the last time, as numbers of ``places``."""
        found = list(self._seen)
        self._seen.clear()
        return found

    def _mark(
        self, node: ast.AST, where: dict[ast.AST, tuple[str, str, int]], inside: bool
    ) -> None:
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            self._mark(child, where, inside)
        for name in ("body", "orelse", "finalbody") if inside else ():
            block = getattr(node, name, None)
            if isinstance(block, list):  # not a lambda's, or that of `a if b else c`
                block[:] = [one for part in block for one in self._marked(part, where[part])]

    def _marked(self, statement: ast.stmt, place: tuple[str, str, int]) -> list[ast.stmt]:
        call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(len(self.places))], [])
        self.places.append(place)
        return [ast.copy_location(ast.Expr(call), statement), statement]
