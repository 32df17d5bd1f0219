"""Detectors, one file a family: build a model whose training loss is any criterion."""

from paploss.detectors.attachment import attach, detach
from paploss.detectors.build import build_detector
from paploss.detectors.config import DetectorConfig, detector_config

__all__ = ["DetectorConfig", "attach", "build_detector", "detach", "detector_config"]
