"""What the shell may offer for options whose values have names."""

from __future__ import annotations


def presets(incomplete: str) -> list[str]:
    from paploss.presets import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


def losses(incomplete: str) -> list[str]:
    """Losses by name and presets; files the shell knows itself."""
    from paploss.criteria import CRITERIA

    return [name for name in CRITERIA if name.startswith(incomplete)] + presets(incomplete)
