"""The paper's own figures: AP, AP50, AP75, APs, APm, APl of detectors with ResNet-50 on COCO."""

from __future__ import annotations

Figures = tuple[float, ...]

RETINANET: dict[str, Figures] = {
    "focal+l1": (37.5, 57.3, 39.5, 20.4, 41.9, 52.2),
    "focal+giou": (39.2, 58.1, 41.4, 22.0, 43.6, 53.3),
    "ap+l1": (35.4, 58.1, 37.0, 19.2, 39.7, 49.2),
    "alrp": (39.0, 58.7, 40.7, 22.0, 43.5, 54.0),
    "searched": (40.5, 59.0, 43.4, 23.9, 44.9, 56.1),
    # Hand-made substitutions of the step function.
    "sigmoid": (3.2, 5.9, 2.8, 2.7, 4.0, 4.9),
    "sqrt": (2.3, 4.3, 2.2, 1.8, 2.9, 4.0),
    "linear": (22.9, 39.3, 23.2, 16.9, 27.3, 29.2),
    "square": (36.4, 56.5, 39.9, 20.3, 41.7, 53.0),
    # What is searched.
    "separate, scale 1": (39.4, 58.9, 42.0, 22.8, 43.9, 54.2),
    "shared, scale": (37.8, 58.3, 39.9, 21.6, 42.2, 52.1),
    "shared, scale 1": (37.1, 58.1, 39.1, 21.0, 41.7, 51.1),
    "L1": (40.0, 58.8, 43.2, 22.3, 44.5, 55.3),
    "IoU": (38.1, 56.2, 40.8, 21.8, 43.6, 53.4),
    "3 segments": (34.2, 48.3, 36.8, 9.2, 43.8, 56.9),
    "7 segments": (40.3, 58.7, 43.2, 23.8, 44.6, 55.9),
    "not blocked": (0.8, 1.3, 0.9, 0.5, 0.9, 1.2),
}
FASTER_RCNN: dict[str, Figures] = {
    "ce+l1": (39.0, 59.6, 42.2, 22.4, 43.5, 53.2),
    "ce+giou": (39.1, 59.3, 42.4, 23.2, 43.4, 53.5),
    "alrp": (40.7, 60.7, 43.3, 23.2, 45.2, 56.6),
    "cse-autoloss-a": (40.4, 60.6, 43.8, 23.8, 45.0, 55.7),
    "searched": (42.0, 60.7, 45.0, 25.3, 46.6, 57.7),
    "not blocked": (29.5, 42.4, 31.4, 14.4, 32.3, 42.6),
}
DEFORMABLE_DETR: dict[str, Figures] = {
    "focal+l1+giou": (43.8, 62.6, 47.7, 26.4, 47.1, 58.0),
    "searched": (45.3, 63.1, 49.6, 27.9, 49.3, 60.2),
    "not blocked": (27.8, 54.9, 25.8, 16.8, 31.5, 35.6),
}
