"""The shape of the project: what imports what, what is public, what the core install needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import paploss

SOURCE = Path(paploss.__file__).parent
# Each room may import from those before it; data and evaluation know no losses.
ROOMS = ("loss", "presets", "criteria", "detectors", "training", "search", "cli")


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("paploss.")}


def test_imports_point_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        if room in ROOMS:
            later = set(ROOMS[ROOMS.index(room) + 1 :])
            assert not imported_rooms(path) & later, path
        if room == "report":  # it reads what runs left behind, and runs nothing
            readable = {"report", "data", "evaluation", "loss", "presets"}
            assert imported_rooms(path) <= readable, path
        if room in ("data", "evaluation"):
            assert not imported_rooms(path) & set(ROOMS), path


def test_public_names() -> None:
    assert sorted(paploss.__all__) == [
        "LossParameters",
        "ParameterizedAPLoss",
        "list_presets",
        "load_preset",
        "parameterized_ap_loss",
    ]
    assert all(hasattr(paploss, name) for name in paploss.__all__)
    assert (SOURCE / "py.typed").exists()


def test_the_core_needs_torch_and_numpy_only() -> None:
    """The loss runs in a process where every other package is hidden."""
    script = """
import sys

class Hide:
    allowed = {"torch", "numpy", "paploss"}
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("numba", "torchvision", "typer", "rich", "matplotlib", "scipy", "faster_coco_eval"):
            raise ModuleNotFoundError(f"{top} is hidden", name=top)

sys.meta_path.insert(0, Hide())
import torch, paploss
loss = paploss.ParameterizedAPLoss(paploss.load_preset("retinanet-r50-fpn-coco"))
logits = torch.randn(9, 2, requires_grad=True)
boxes = torch.rand(9, 4).cumsum(1)
loss(logits, torch.tensor([0, 1, 1, -1, -1, -1, -1, -1, -2]), boxes, boxes).backward()
assert logits.grad.abs().sum() > 0
sys.argv = ["paploss", "presets"]
from paploss.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stderr.strip() == "paploss: typer is missing: pip install 'paploss[cli]'"
    assert result.returncode == 1
