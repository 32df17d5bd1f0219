"""Methods laid over those of one object, and taken off again."""

from __future__ import annotations

from typing import Any


class Overrides:
    """Attributes of objects that hide those of their classes until `restore`."""

    def __init__(self) -> None:
        self._hidden: list[tuple[Any, str, bool, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; what the object itself had under that name comes back with `restore`."""
        self._hidden.append((owner, name, name in vars(owner), vars(owner).get(name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        for owner, name, was_there, value in reversed(self._hidden):
            if was_there:
                setattr(owner, name, value)
            else:
                delattr(owner, name)
        self._hidden.clear()
