"""Ready-made loss parameters: published and searched, one json file each.

A preset is a loss file (see `paploss.loss.parameters`) with an ``about`` section: detector, data,
source and the AP reported or measured with it.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from paploss.loss.parameters import LossParameters, choose_head, parse_heads

_SUFFIX = ".loss.json"


def list_presets() -> list[str]:
    """Names of all presets.

    Example:
        >>> "retinanet-r50-fpn-coco" in list_presets()
        True
    """
    names = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def load_preset(name: str, *, head: str | None = None) -> LossParameters:
    """Parameters of a preset; ``head`` chooses one where a detector has several (``rpn``, ``rcnn``).

    Example:
        >>> load_preset("faster-rcnn-r50-fpn-coco", head="rpn").gradient_scale
        1.695
    """
    return choose_head(load_preset_heads(name), head, where=f"preset {name}")


def load_preset_heads(name: str) -> dict[str, LossParameters]:
    """Parameters of every head of a preset, by head name."""
    return parse_heads(_text(name), where=f"preset {name}")


def describe_preset(name: str) -> dict[str, Any]:
    """What is known of a preset: title, detector, data, source, ap, ap_kind."""
    about: dict[str, Any] = json.loads(_text(name))["about"]
    return about


def _text(name: str) -> str:
    if name not in list_presets():
        raise ValueError(f"preset: expected one of {', '.join(list_presets())}, found {name!r}")
    return files(__name__).joinpath(name + _SUFFIX).read_text(encoding="utf-8")
