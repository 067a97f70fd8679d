"""For the documentation: classes of eventlog._dataclass are dataclasses, and show their fields."""

from __future__ import annotations

from typing import Any

import griffe


class OurDataclasses(griffe.Extension):
    """Comes before griffe's own extension, which goes by the decorator's name."""

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called for each class as it is read."""
        for decorator in cls.decorators:
            if decorator.callable_path == "eventlog._dataclass.dataclass":
                cls.labels.add("dataclass")
                call = decorator.value
                if isinstance(call, griffe.ExprCall):
                    call.function = griffe.ExprName("dataclasses.dataclass")
