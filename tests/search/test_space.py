"""The search space: names, numbers, and the losses they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paploss import LossParameters, load_preset
from paploss.presets import load_preset_heads
from paploss.search.space import SearchSpace

LINEAR = {"detector": LossParameters.linear()}


def test_sizes_of_the_papers_spaces() -> None:
    assert len(SearchSpace(LINEAR).names) == 41
    assert len(SearchSpace(LINEAR, safe=True).names) == 33
    assert len(SearchSpace(LINEAR, shared=True).names) == 9
    assert len(SearchSpace(LINEAR, fixed=frozenset({"scale"})).names) == 40
    assert len(SearchSpace({"detector": LossParameters.linear(segments=7)}).names) == 61
    both = load_preset_heads("faster-rcnn-r50-fpn-coco")
    assert len(SearchSpace(both).names) == 82


@given(st.lists(st.floats(0.01, 0.99, allow_subnormal=False), min_size=41, max_size=41))
def test_numbers_and_losses_agree_with_the_vector_form(numbers: list[float]) -> None:
    space = SearchSpace(LINEAR)
    heads = space.heads(dict(zip(space.names, numbers, strict=True)))
    expected = LossParameters.from_vector(numbers)
    np.testing.assert_allclose(heads["detector"].to_vector(), expected.to_vector(), atol=1e-12)
    assert list(space.values(heads)) == list(space.names)
    np.testing.assert_allclose(list(space.values(heads).values()), numbers, atol=1e-6)


def test_the_start_of_a_free_search_is_the_identity() -> None:
    values = SearchSpace(LINEAR).values()
    fractions = [values[f"detector.f3.y{k}"] for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(fractions, [1 / 5, 1 / 4, 1 / 3, 1 / 2])
    assert values["detector.scale"] == 0.5


def test_what_is_fixed_keeps_its_value() -> None:
    preset = load_preset("retinanet-r50-fpn-coco")
    space = SearchSpace({"detector": preset}, fixed=frozenset({"f2", "f4", "scale"}))
    assert not [name for name in space.names if ".f2." in name or "scale" in name]
    found = space.heads(dict.fromkeys(space.names, 0.3))["detector"]
    assert found.functions[1] == preset.functions[1]
    assert found.functions[3] == preset.functions[3]
    assert found.gradient_scale == preset.gradient_scale
    assert found.functions[0] != preset.functions[0]


def test_safe_and_shared_losses() -> None:
    safe = SearchSpace({"detector": load_preset("retinanet-r50-fpn-coco")}, safe=True)
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = dict(zip(safe.names, rng.uniform(0.01, 0.99, len(safe.names)), strict=True))
        assert safe.heads(values)["detector"].punished_ranges() == []
    shared = SearchSpace(LINEAR, shared=True)
    found = shared.heads(dict.fromkeys(shared.names, 0.4))["detector"]
    assert len(set(found.functions)) == 1


def test_bad_spaces_are_named() -> None:
    with pytest.raises(ValueError, match=r"fixed: expected f1..f5 or scale, found f6"):
        SearchSpace(LINEAR, fixed=frozenset({"f6"}))
    with pytest.raises(ValueError, match="a shared function is safe already"):
        SearchSpace(LINEAR, shared=True, safe=True)
    with pytest.raises(ValueError, match="functions that differ"):
        SearchSpace({"detector": load_preset("retinanet-r50-fpn-coco")}, shared=True)
    with pytest.raises(ValueError, match="nothing is left to search"):
        SearchSpace(LINEAR, shared=True, fixed=frozenset({"f1", "scale"}))
    wide = {"detector": LossParameters.linear(gradient_scale=50.0)}
    with pytest.raises(ValueError, match=r"start: detector.scale lies outside"):
        SearchSpace(wide).values()
