"""Giving the loss to a detector that exists already, and taking it away again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import nn
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection.ssd import SSD

from paploss.criteria import Criteria, Criterion
from paploss.detectors import one_stage, two_stage
from paploss.detectors.overrides import Overrides

Model = TypeVar("Model", bound=nn.Module)
_ATTACHED = "_paploss_overrides"


class _Family(NamedTuple):
    models: tuple[type[nn.Module], ...]
    heads: tuple[str, ...]
    install: Callable[[Any, Criteria, Overrides], None]


_TORCHVISION = (
    _Family((RetinaNet,), ("detector",), one_stage.install_retinanet),
    _Family((FCOS,), ("detector",), one_stage.install_fcos),
    _Family((SSD,), ("detector",), one_stage.install_ssd),
    _Family((FasterRCNN,), two_stage.HEADS, two_stage.install),
)


def _families() -> tuple[_Family, ...]:
    if "transformers" not in sys.modules:  # then the model is none of its own; the import is slow
        return _TORCHVISION
    from paploss.detectors import detr

    return (*_TORCHVISION, _Family(detr.MODELS, ("detector",), detr.install))


def attach(model: Model, criterion: Criterion | Mapping[str, Criterion] | Criteria) -> Model:
    """Let an existing detector train with a criterion; its own ``forward`` then returns that loss.

    A ranking criterion also lifts the model's absolute threshold on scores, for they no longer are
    probabilities. Attaching again replaces the criterion.

    Args:
        model: torchvision's RetinaNet, FCOS, SSD, Faster R-CNN (Mask and Keypoint R-CNN keep the
            losses of their other branches), or transformers' DETR, Conditional, DAB and Deformable
            DETR and RT-DETR.
        criterion: from `build_criterion`; for Faster R-CNN a dict with ``rpn`` and ``rcnn`` gives
            each head its own.

    Returns:
        The same model.
    """
    families = _families()
    family = next((f for f in families if isinstance(model, f.models)), None)
    if family is None:
        served = ", ".join(cls.__name__ for f in families for cls in f.models)
        raise ValueError(
            f"model: {type(model).__name__} cannot take a criterion; those that can: {served}. "
            "For any other, call the criterion with MatchedPredictions in your own loop"
        )
    criteria = Criteria(criterion, family.heads)
    detach(model)
    overrides = Overrides()
    try:
        family.install(model, criteria, overrides)
    except ValueError:
        overrides.restore()
        raise
    model.criterion = criteria
    object.__setattr__(model, _ATTACHED, overrides)
    return model


def detach(model: Model) -> Model:
    """Give a detector its own loss back; one without a criterion stays as it is."""
    overrides = vars(model).pop(_ATTACHED, None)
    if overrides is not None:
        overrides.restore()
        del model.criterion
    return model
