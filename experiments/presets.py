"""Make presets of the package from what searches found and the AP that tables measured with it.

python experiments/presets.py     # src/paploss/presets/*.loss.json
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from paploss.loss.parameters import load_heads, save_heads

ROOT = Path(__file__).parent.parent
# Preset: search, table and label of the row that measures it, detector, data.
PRESETS = {
    "retinanet-tiny-shapes": ("retinanet", "retinanet", "searched", "tiny RetinaNet", "shapes"),
    "faster-rcnn-tiny-shapes": (
        "faster-rcnn-longer", "faster-rcnn", "searched", "tiny Faster R-CNN", "shapes",
    ),
    "deformable-detr-tiny-shapes": (
        "deformable-detr", "deformable-detr", "searched", "tiny Deformable DETR", "shapes",
    ),
    "retinanet-mobilenetv2-bccd": (
        "bccd", "bccd", "searched on BCCD", "RetinaNet MobileNetV2-FPN", "BCCD",
    ),
}  # fmt: skip


def main() -> None:
    for preset, (search, table, label, detector, data) in PRESETS.items():
        found = ROOT / f"results/searches/{search}.loss.json"
        measured = ROOT / f"results/tables/{table}.json"
        if not found.exists() or not measured.exists():
            print(f"{preset}: not searched or not measured yet")
            continue
        rows = {row["label"]: row for row in json.loads(measured.read_text())["rows"]}
        values = rows[label]["AP"]
        about = {
            "title": f"searched, {detector}",
            "detector": detector,
            "data": data,
            "source": f"python experiments/searches.py {search}: "
            + json.loads(found.read_text())["about"]["source"],
            "note": f"results/tables/{table}.md compares it",
            "ap": round(statistics.mean(values), 1),
            "ap_kind": f"measured on the test split of {data}, standard deviation "
            f"{statistics.stdev(values):.1f} over {len(values)} seeds",
        }
        save_heads(load_heads(found), ROOT / f"src/paploss/presets/{preset}.loss.json", about=about)
        print(f"{preset}: AP {about['ap']}")


if __name__ == "__main__":
    main()
