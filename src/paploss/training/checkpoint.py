"""Checkpoints: written whole or not at all, and loadable without running code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

FORMAT = 1


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write tensors, numbers, strings and containers of them; a stop half-way leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    with open(temporary, "wb") as file:
        torch.save({"format": FORMAT, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; a `ValueError` names the file if it is none of ours."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such checkpoint")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path}: not a checkpoint: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path}: expected a paploss checkpoint of format {FORMAT}, found {found}")
    return content
