"""Parameterized AP Loss: train both branches of an object detector with one searched loss."""

from paploss.loss.parameterized_ap import ParameterizedAPLoss, parameterized_ap_loss
from paploss.loss.parameters import LossParameters
from paploss.presets import list_presets, load_preset

__version__ = "0.1.0"

__all__ = [
    "LossParameters",
    "ParameterizedAPLoss",
    "list_presets",
    "load_preset",
    "parameterized_ap_loss",
]
