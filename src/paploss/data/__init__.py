"""Detection data: COCO, PASCAL VOC and YOLO folders, and the built-in data set ``shapes``."""

from paploss.data.dataset import Annotations, DetectionDataset, Fault, Record
from paploss.data.detect import available_splits, load_dataset, read_annotations
from paploss.data.shapes import shapes
from paploss.data.transforms import collate, training_transform

__all__ = [
    "Annotations",
    "DetectionDataset",
    "Fault",
    "Record",
    "available_splits",
    "collate",
    "load_dataset",
    "read_annotations",
    "shapes",
    "training_transform",
]
