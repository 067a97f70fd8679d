"""The mutation tests change functions that are imported already, and know which tests run them."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from types import ModuleType

from tests.mutation._live import Marks, exchange, functions_of
from tests.mutation._mutator import changes_of

SOURCE = '''\
def plain(x):
    """A docstring."""
    if x > 1:
        return x + 1
    return 0


def like_a_class(x):
    return x.__module__, x.__qualname__


class Some:
    @property
    def value(self):
        return self._made()()

    @value.setter
    def value(self, new):
        self.new = new

    def _made(self):
        def inner():
            return 7
        return inner

    def __hash__(self):
        return super().__hash__()


kept = plain
'''


def imported(folder: Path) -> tuple[ModuleType, Path]:
    path = folder / "module.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("module", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, path


def test_functions_that_the_garbage_collector_does_not_look_at_are_changed(tmp_path: Path) -> None:
    """Those that are there when a crash test begins, which freezes them."""
    module, path = imported(tmp_path)
    gc.freeze()
    try:
        exchange(functions_of([path]), path, SOURCE.replace("return 0", "return 9"))
        assert (module.kept(0), gc.get_freeze_count() > 0) == (9, True)
    finally:
        gc.unfreeze()


def test_whoever_holds_a_function_has_the_changed_one(tmp_path: Path) -> None:
    module, path = imported(tmp_path)
    for old, new, sides in [
        ("x > 1", "(x <= 1)", lambda: module.kept(2)),
        ("return 7", "return 8", lambda: module.Some().value),
        ("x.__module__, x", "x.__name__, x", lambda: module.like_a_class(module.Some)),
    ]:
        before = sides()
        exchange(functions_of([path]), path, SOURCE.replace(old, new))
        assert sides() != before
        exchange(functions_of([path]), path, SOURCE)
        assert sides() == before


def test_each_change_can_be_made(tmp_path: Path) -> None:
    _, path = imported(tmp_path)
    for change in changes_of(tmp_path, "module.py"):
        exchange(functions_of([path]), path, change.applied(SOURCE.encode()).decode())


def test_each_change_names_a_statement_that_has_a_mark(tmp_path: Path) -> None:
    module, path = imported(tmp_path)
    marks = Marks(functions_of([path]))

    def seen() -> set[tuple[str, int]]:
        return {marks.places[number][1:] for number in marks.take()}

    assert module.plain(5) == 6
    plain = {("plain", 1), ("plain", 2), ("plain", 3)}
    assert seen() == plain
    assert module.Some().value == 7
    made = {("Some.value", 1), ("Some._made", 1), ("Some._made.inner", 1), ("Some._made", 3)}
    assert seen() == made
    module.plain(0)
    module.Some().value = 1
    module.like_a_class(module.Some)
    hash(module.Some())
    known = plain | made | seen()
    changes = changes_of(tmp_path, "module.py")
    assert len(changes) > 8 and {(one.function, one.statement) for one in changes} <= known
