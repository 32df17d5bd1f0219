from __future__ import annotations

import numpy as np

from paploss.data import DetectionDataset
from paploss.data.dataset import Annotations, Record
from paploss.data.shapes import shapes_annotations
from paploss.detectors import detector_config
from paploss.detectors.anchor_fit import describe_misfits


def test_objects_smaller_than_all_anchors_are_named() -> None:
    boxes = [(10, 10, 16, 16), (30, 30, 35, 36), (40, 40, 80, 80)]
    records = [Record.of(k, None, (128, 128), boxes, [0, 0, 1]) for k in range(3)]
    dataset = DetectionDataset(Annotations(["platelet", "cell"], records))
    (sentence,) = describe_misfits(detector_config(), dataset)
    assert sentence.startswith("100% of 'platelet' (6 x 6 pixels) overlap no anchor by 0.5")
    # In images of twice the size they fit.
    larger = detector_config(short_side=384, long_side=384)
    assert describe_misfits(larger, dataset) == []
    assert describe_misfits(detector_config(name="deformable-detr"), dataset) == []


def test_shapes_fit_the_tiny_detectors() -> None:
    dataset = DetectionDataset(shapes_annotations("train", images=50))
    for name in ("retinanet", "faster-rcnn"):
        assert describe_misfits(detector_config(name=name), dataset) == []


def test_a_data_set_without_objects_fits() -> None:
    record = Record.of(1, None, (64, 64), np.zeros((0, 4)), [])
    dataset = DetectionDataset(Annotations(["nothing"], [record]))
    assert describe_misfits(detector_config(), dataset) == []
