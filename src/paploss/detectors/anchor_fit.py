"""Do the anchors of a detector fit the objects of a data set? What fits none is hardly ever found."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paploss.data.dataset import DetectionDataset
from paploss.detectors.config import DetectorConfig, FasterRCNNConfig, RetinaNetConfig
from paploss.detectors.retinanet import build_anchors

IMAGES = 2000  # that are looked at; enough for any data set
MATCHING_IOU = 0.5  # below it an object is matched to its best anchor alone


def describe_misfits(config: DetectorConfig, dataset: DetectionDataset) -> list[str]:
    """A sentence for each class most of whose objects overlap no anchor by half.

    Objects are measured as evaluation resizes them, and laid on the anchors' centres: where they
    really are, the overlap is smaller still.
    """
    if not isinstance(config, RetinaNetConfig | FasterRCNNConfig):
        return []
    anchors = np.concatenate([cell.numpy() for cell in build_anchors(config).cell_anchors])
    anchor_sides = anchors[:, 2:] - anchors[:, :2]
    sides, labels = _object_sides(config, dataset)
    shared = np.minimum(sides[:, None], anchor_sides).prod(2)
    union = sides.prod(1)[:, None] + anchor_sides.prod(1) - shared
    best = (shared / union).max(1)
    sentences = []
    for label, name in enumerate(dataset.class_names):
        of_class = best[labels == label]
        misfits = float((of_class < MATCHING_IOU).mean()) if len(of_class) else 0.0
        if misfits > 0.5:
            width, height = np.median(sides[labels == label], axis=0)
            sentences.append(
                f"{100 * misfits:.0f}% of {name!r} ({width:.0f} x {height:.0f} pixels) overlap no "
                f"anchor by {MATCHING_IOU:g} (sides {anchor_sides.min():.0f} to "
                f"{anchor_sides.max():.0f}): change detector.anchor_scale, levels or short_side"
            )
    return sentences


def _object_sides(
    config: RetinaNetConfig | FasterRCNNConfig, dataset: DetectionDataset
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int64]]:
    """Width and height of all objects, (n, 2), in resized images; and their labels, (n,)."""
    sides: list[npt.NDArray[np.floating]] = [np.zeros((0, 2))]
    records = dataset.records[:IMAGES]
    for record in records:
        short, long = sorted((record.height, record.width))
        scale = min(config.short_side / short, config.long_side / long)
        sides.append((record.boxes[:, 2:] - record.boxes[:, :2]) * scale)
    labels = [np.zeros(0, dtype=np.int64), *(record.labels for record in records)]
    return np.concatenate(sides), np.concatenate(labels)
