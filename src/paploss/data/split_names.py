"""The names people give to the parts of a data set."""

from __future__ import annotations

import re

_ALIASES = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "eval": "val",
    "dev": "val",
    "testing": "test",
}
_ORDER = ("train", "val", "trainval", "test", "all")


def canonical_split(name: str) -> str:
    """``train``, ``val``, ``test`` for their usual aliases, other names as they are.

    Example:
        >>> [canonical_split(name) for name in ("Valid", "eval", "train", "minival")]
        ['val', 'val', 'train', 'minival']
    """
    return _ALIASES.get(name.lower(), name.lower())


def split_in(file_stem: str) -> str:
    """The split that a file name speaks of, ``all`` if none.

    Example:
        >>> [split_in(name) for name in ("instances_train2017", "my-valid", "cells")]
        ['train', 'val', 'all']
    """
    known = {"train", "val", "test", "trainval", *_ALIASES}
    for word in re.findall(r"[a-z]+", file_stem.lower()):
        if word in known:
            return canonical_split(word)
    return "all"


def in_order(splits: list[str]) -> list[str]:
    """The splits as people list them: train, val, test, then others."""
    return sorted(splits, key=lambda s: (_ORDER.index(s) if s in _ORDER else len(_ORDER), s))
