from __future__ import annotations

import pytest

from paploss import list_presets, load_preset
from paploss.presets import describe_preset, load_preset_heads


def test_published_presets_and_their_tied_versions() -> None:
    published = {"retinanet-r50-fpn-coco": 40.5, "faster-rcnn-r50-fpn-coco": 42.0}
    for name, ap in published.items():
        assert describe_preset(name)["ap"] == ap
        assert "NeurIPS 2021" in describe_preset(name)["source"]
        free, tied = load_preset_heads(name), load_preset_heads(name + "-tied")
        assert {head: parameters.tied() for head, parameters in free.items()} == tied
        for head, parameters in free.items():
            assert parameters.segments == 5
            assert parameters.punished_ranges()
            assert tied[head].punished_ranges() == []
    assert load_preset("retinanet-r50-fpn-coco").gradient_scale == 4.1231
    assert list(load_preset_heads("faster-rcnn-r50-fpn-coco")) == ["rpn", "rcnn"]
    assert load_preset("faster-rcnn-r50-fpn-coco", head="rcnn").functions[1][2] == (0.546, 0.2461)


def test_every_preset_loads_and_says_where_it_comes_from() -> None:
    for name in list_presets():
        assert load_preset_heads(name)
        assert {"title", "detector", "data", "source", "note"} <= set(describe_preset(name))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"preset: expected one of .*retinanet.*, found 'yolo'"):
        load_preset("yolo")
    with pytest.raises(ValueError, match="holds the heads rpn, rcnn"):
        load_preset("faster-rcnn-r50-fpn-coco")
