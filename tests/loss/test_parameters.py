from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paploss import LossParameters, load_preset
from paploss.loss.parameters import load_heads, save_heads, vector_length

SEGMENTS = st.sampled_from([2, 3, 5, 7, 12])


def vectors(length: int, low: float = 0.05, high: float = 0.95) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(low, high), min_size=length, max_size=length)


@given(data=st.data(), segments=SEGMENTS, form=st.sampled_from(["separate", "shared", "tied"]))
def test_vector_and_back(data: st.DataObject, segments: int, form: str) -> None:
    options: dict[str, Any] = {} if form == "separate" else {form: True}
    vector = data.draw(vectors(vector_length(segments, **options), 0.2, 0.8))
    parameters = LossParameters.from_vector(vector, segments, **options)
    assert parameters.segments == segments
    np.testing.assert_allclose(parameters.to_vector(**options), vector, rtol=1e-6)
    again = LossParameters.from_control_points(
        parameters.control_points(), parameters.gradient_scale
    )
    assert again == parameters


@given(data=st.data(), segments=SEGMENTS)
def test_any_point_of_the_unit_cube_is_a_valid_loss(data: st.DataObject, segments: int) -> None:
    vector = data.draw(vectors(vector_length(segments), 0, 1))
    parameters = LossParameters.from_vector(vector, segments)
    for points in parameters.functions:
        x, y = np.array(points).T
        assert (np.diff(x) > 5e-7).all()
        assert (np.diff(y) >= 0).all()
    assert 0.1 <= parameters.gradient_scale <= 10


def test_the_papers_form() -> None:
    assert vector_length() == 41
    start = LossParameters.linear(5).to_vector()
    expected = np.append(np.tile(np.repeat([1 / 5, 1 / 4, 1 / 3, 1 / 2], 2), 5), 0.5)
    np.testing.assert_allclose(start, expected)
    theta = np.full(41, 0.5)
    theta[[0, 1, -1]] = 0.25, 0.75, 1.0
    parameters = LossParameters.from_vector(theta)
    assert parameters.functions[0][1] == (0.25, 0.75)
    assert parameters.functions[0][2] == (0.625, 0.875)  # half of what remains
    assert parameters.gradient_scale == 10


def test_fixed_gradient_scale_and_shared_functions() -> None:
    parameters = LossParameters.from_vector(np.full(8, 0.3), shared=True, gradient_scale=3.0)
    assert len(set(parameters.functions)) == 1
    assert parameters.gradient_scale == 3
    assert len(parameters.to_vector(shared=True, fixed_gradient_scale=True)) == 8
    tied = LossParameters.from_vector(np.linspace(0.1, 0.9, 33), tied=True)
    assert tied.functions[4] == tied.functions[0]
    assert tied.punished_ranges() == [] or tied._largest_rank_error() > 1
    with pytest.raises(ValueError, match="shared: the five functions differ"):
        tied.to_vector(shared=True)
    with pytest.raises(ValueError, match="tied: f5 differs from f1"):
        LossParameters.from_vector(np.linspace(0.1, 0.9, 41)).to_vector(tied=True)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("linear", lambda x: x),
        ("square", np.square),
        ("sqrt", np.sqrt),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-(2 * x - 1)))),
    ],
)
def test_substitutions_are_within_their_stated_error(
    name: str, function: Callable[[Any], Any]
) -> None:
    x = np.linspace(0, 1, 200_001)
    for points in LossParameters.substitution(name).functions:
        table = np.interp(x, *np.array(points).T)
        assert np.abs(table - function(x)).max() < (5e-4 if name == "sqrt" else 2.5e-4)
    assert LossParameters.substitution("sigmoid").functions[0][0][1] > 0.2


def test_bad_vectors_and_points() -> None:
    with pytest.raises(ValueError, match="vector: expected 41 numbers for segments=5, found 40"):
        LossParameters.from_vector(np.full(40, 0.5))
    with pytest.raises(ValueError, match=r"vector: expected numbers in \[0, 1\], found \[1.5\]"):
        LossParameters.from_vector(np.append(np.full(40, 0.5), 1.5))
    with pytest.raises(ValueError, match=r"vector: .*nan"):
        LossParameters.from_vector(np.append(np.full(40, 0.5), np.nan))
    with pytest.raises(ValueError, match="segments: expected at least 2, found 1"):
        LossParameters.linear(1)
    with pytest.raises(ValueError, match="expected 5 lists of control points, found 4"):
        LossParameters.from_control_points([[(0, 0), (1, 1)]] * 4)
    with pytest.raises(ValueError, match="gradient_scale: expected a positive number, found 0"):
        LossParameters.linear(gradient_scale=0)
    with pytest.raises(ValueError, match=r"from \(0, 0\) to \(1, 1\)"):
        LossParameters.substitution("sigmoid").to_vector()
    with pytest.raises(ValueError, match=r"scales from 0.1 to 10, found 20"):
        LossParameters.linear(gradient_scale=20).to_vector()


@given(data=st.data())
def test_save_and_load(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("loss") / "my.loss.json"
    parameters = LossParameters.from_vector(data.draw(vectors(41, 0, 1)))
    parameters.save(path)
    assert LossParameters.load(path) == parameters


def test_files_with_several_heads(tmp_path: Path) -> None:
    heads = {"rpn": LossParameters.linear(3), "rcnn": LossParameters.linear(5)}
    save_heads(heads, tmp_path / "two.loss.json")
    assert load_heads(tmp_path / "two.loss.json") == heads
    assert LossParameters.load(tmp_path / "two.loss.json", head="rpn") == heads["rpn"]
    with pytest.raises(ValueError, match="holds the heads rpn, rcnn: choose one with head="):
        LossParameters.load(tmp_path / "two.loss.json")
    with pytest.raises(ValueError, match="head: expected one of rpn, rcnn, found 'mask'"):
        LossParameters.load(tmp_path / "two.loss.json", head="mask")


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


FUNCTIONS = ("heads", "detector", "functions")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("version", value=2), "version: expected 1, found 2"),
        (_set("format", value="other"), "not a loss file"),
        (_set("heads", value={}), "heads: expected at least one named head"),
        (_set(*FUNCTIONS, "f6", value=[]), "unknown f6"),
        (_set(*FUNCTIONS, value={"f1": []}), "missing f2, f3, f4, f5"),
        (_set(*FUNCTIONS, value=3), "functions: expected an object"),
        (_set(*FUNCTIONS, "f2", value="x"), r"f2: expected \[x, y\] pairs of numbers, found 'x'"),
        (_set(*FUNCTIONS, "f2", 1, value=[0.5]), r"f2: expected \[x, y\] pairs of numbers"),
        (_set(*FUNCTIONS, "f2", 1, value=[True, 0.5]), r"f2: expected \[x, y\] pairs"),
        (_set(*FUNCTIONS, "f2", value=[[0, 0]]), "f2: expected at least 2 control points"),
        (_set(*FUNCTIONS, "f3", 1, value=[math.nan, 0.2]), "f3: expected finite numbers"),
        (_set(*FUNCTIONS, "f3", 1, value=[0.2, math.inf]), "f3: expected finite numbers"),
        (_set(*FUNCTIONS, "f3", 1, value=[0.9, 0.2]), "f3: expected strictly increasing x"),
        (_set(*FUNCTIONS, "f3", 1, value=[0.2, 0.9]), "f3: expected y that never falls"),
        (
            _set(*FUNCTIONS, "f3", 0, value=[0.1, 0.0]),
            "f3: expected x from 0 to 1, found x from 0.1",
        ),
        (_set(*FUNCTIONS, "f4", -1, value=[1.0, 1.2]), r"f4: expected y within \[0, 1\]"),
        (_set(*FUNCTIONS, "f4", 0, value=[0.0, -0.2]), r"f4: expected y within \[0, 1\]"),
        (_set("heads", "detector", "gradient_scale", value=None), "gradient_scale: expected a num"),
        (_set("heads", "detector", "gradient_scale", value=-1), "gradient_scale: expected a pos"),
        (_set("heads", "detector", "gradient_scale", value=math.nan), "gradient_scale: expected"),
    ],
)
def test_malformed_files_are_refused_by_name(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.loss.json"
    LossParameters.linear().save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"bad\.loss\.json: .*" + message):
        LossParameters.load(path)


def test_not_json(tmp_path: Path) -> None:
    path = tmp_path / "bad.loss.json"
    path.write_text('{"format": "paploss-loss", ')
    with pytest.raises(ValueError, match=r"bad\.loss\.json: not a json file: .*line 1"):
        LossParameters.load(path)
    with pytest.raises(FileNotFoundError, match=r"missing\.json"):
        LossParameters.load(tmp_path / "missing.json")


def test_diagnosis_agrees_with_the_loss_itself() -> None:
    """Where `punished_ranges` says so, and only there, f1 - r f5 falls with l for a reachable r."""
    parameters = load_preset("retinanet-r50-fpn-coco")
    f1, f5 = (np.array(parameters.functions[k]) for k in (0, 4))
    ranges = parameters.punished_ranges()
    assert ranges[0].quality_from == 0
    assert ranges[-1].quality_to == pytest.approx(0.5492)
    for low, high in zip(np.linspace(0, 0.999, 500), np.linspace(0.001, 1, 500), strict=True):
        middle = (low + high) / 2
        for error in (0.1, 0.3, 0.6, 0.95):
            rise = np.interp([low, high], *f1.T) - error * np.interp([low, high], *f5.T)
            inside = [r for r in ranges if r.quality_from <= low and high <= r.quality_to]
            near_edge = any(
                abs(middle - x) < 0.0011 for r in ranges for x in (r.quality_from, r.quality_to)
            )
            if not near_edge:
                assert (rise[1] < rise[0]) == (bool(inside) and error > inside[0].rank_error)


def test_diagnosis_of_tied_and_unusual_losses() -> None:
    assert load_preset("retinanet-r50-fpn-coco").tied().punished_ranges() == []
    assert LossParameters.substitution("sigmoid").punished_ranges() == []
    steep, flat = [(0, 0), (0.5, 0.9), (1, 1)], [(0, 0), (0.5, 0.1), (1, 1)]
    # f2 above f4: the rank error can exceed 1, and then even a tied loss punishes better boxes.
    above = LossParameters.from_control_points([flat, steep, flat, flat, flat])
    assert above._largest_rank_error() == pytest.approx(9)
    assert [r.rank_error for r in above.punished_ranges()] == pytest.approx([1, 1])
    unbounded = LossParameters.from_control_points(
        [flat, flat, flat, [(0, 0), (0.5, 0), (1, 1)], flat]
    )
    assert unbounded._largest_rank_error() == math.inf


@given(st.lists(st.floats(0.0, 1.0), min_size=41, max_size=41))
def test_safe_losses_never_punish_a_better_box(vector: list[float]) -> None:
    free = LossParameters.from_vector(vector)
    safe = free.safe()
    assert safe.punished_ranges() == []
    x = np.linspace(0, 1, 1001)
    f2, f4, cut = (
        np.interp(x, *np.array(points).T)
        for points in (free.functions[1], free.functions[3], safe.functions[1])
    )
    np.testing.assert_allclose(cut, np.minimum(f2, f4), atol=1e-5)
    assert safe.functions[0] == safe.functions[4] == free.functions[0]
    assert safe.functions[2:4] == free.functions[2:4]


def test_a_tied_loss_may_punish_where_f2_is_above_f4() -> None:
    steep = ((0.0, 0.0), (0.1, 0.9), (1.0, 1.0))
    flat = ((0.0, 0.0), (0.9, 0.1), (1.0, 1.0))
    tied = LossParameters((flat, steep, flat, flat, flat))
    assert tied.tied() == tied
    assert tied.punished_ranges()
    assert tied.safe().punished_ranges() == []
