"""Detectors, one file a family: build a model whose training loss is any criterion."""

from paploss.detectors.build import DetectorConfig, build_detector

__all__ = ["DetectorConfig", "build_detector"]
