"""What a page is made of: runs read as far as they go, numbers compared, figures drawn."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from paploss import LossParameters, load_preset
from paploss.cli.app import app
from paploss.report import write_report
from paploss.report.files import Notes
from paploss.report.function_figures import searched_functions
from paploss.report.gallery import make_gallery
from paploss.report.groups import group_runs
from paploss.report.matches import load_shown_split, match, rank_correlation, score_map
from paploss.report.page import gather
from paploss.report.runs import read_runs
from paploss.report.trials import loss_of
from paploss.search.space import SearchSpace
from tests.report.fixtures import HOSTILE, make_search, write_data, write_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "hostile")


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_search(tmp_path_factory.mktemp("report") / "search")


def test_seeds_are_taken_together(tmp_path: Path, data: Path) -> None:
    for seed, ap in ((0, 0.40), (1, 0.44)):
        write_run(tmp_path / f"focal-{seed}", data, seed=seed, ap=ap)
    write_run(tmp_path / "other", data, loss="focal+giou", ap=0.3)
    report = gather([tmp_path])
    assert [(g.label, len(g.runs)) for g in report.groups] == [("focal+l1", 2), ("focal+giou", 1)]
    figures = report.groups[0].figures("AP")
    assert figures is not None
    assert figures.mean == pytest.approx(0.42)
    assert figures.spread == pytest.approx(0.04 / math.sqrt(2))
    assert report.groups[0].figures("APl") is None, "-1 is no figure"
    assert (report.summary.winner, report.summary.ap) == ("focal+l1", "42.0 ± 2.8")
    (gain,) = report.summary.gains
    assert gain.rival == "focal+giou"
    assert gain.points == pytest.approx(12)
    assert gain.sure is None, "one seed tells nothing of the spread"
    assert not report.notes


def test_runs_of_one_loss_are_told_apart_by_what_differs(tmp_path: Path, data: Path) -> None:
    for name in ("short", "long"):
        write_run(tmp_path / name, data)
    config = tmp_path / "long/config.yaml"
    config.write_text(config.read_text().replace("epochs: 2", "epochs: 24"))
    searches, trainings = read_runs([tmp_path / "short", tmp_path / "long"], Notes())
    labels = [group.label for group in group_runs(searches, trainings)]
    assert labels == ["focal+l1, epochs 2", "focal+l1, epochs 24"]


def test_a_head_with_a_loss_of_its_own_is_named(tmp_path: Path, data: Path) -> None:
    write_run(tmp_path / "run", data, loss="pap")
    config = tmp_path / "run/config.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["detector"]["name"] = "faster-rcnn"
    config.write_text(yaml.safe_dump(settings))
    (both,) = read_runs([tmp_path / "run"], Notes())[1]
    assert (both.loss, set(both.heads or {})) == ("pap", {"rpn", "rcnn"})
    settings["loss"]["heads"] = None
    config.write_text(yaml.safe_dump(settings))
    assert set(read_runs([tmp_path / "run"], Notes())[1][0].heads or {}) == {"rpn", "rcnn"}
    settings["loss"]["heads"] = {"rpn": {"name": "ce+giou"}}
    config.write_text(yaml.safe_dump(settings))
    (one,) = read_runs([tmp_path / "run"], Notes())[1]
    assert (one.loss, set(one.heads or {})) == ("pap, rpn: ce+giou", {"rcnn"})


def test_a_start_that_is_the_published_loss_is_drawn_once(search: Path) -> None:
    found, _ = read_runs([search], Notes())
    assert len(searched_functions(found[0])[0].panels[0].series) == 3
    found[0].settings["space"]["init"] = "retinanet-r50-fpn-coco"
    assert len(searched_functions(found[0])[0].panels[0].series) == 2


def test_only_runs_on_the_same_data_are_rivals(tmp_path: Path, data: Path) -> None:
    write_run(tmp_path / "here", data, ap=0.4)
    write_run(tmp_path / "elsewhere", write_data(tmp_path / "other"), loss="rs", ap=0.3)
    summary = gather([tmp_path / "here", tmp_path / "elsewhere"]).summary
    assert (summary.winner, summary.gains) == ("focal+l1", [])


def test_searched_numbers_stand_for_the_loss_that_was_tried() -> None:
    start = {head: load_preset("faster-rcnn-r50-fpn-coco", head=head) for head in ("rpn", "rcnn")}
    linear = {"detector": LossParameters.linear()}
    random = np.random.default_rng(0)
    for space in (
        SearchSpace(start),
        SearchSpace(start, safe=True),
        SearchSpace(start, fixed=frozenset({"f3", "scale"})),
        SearchSpace(linear, shared=True),
    ):
        values = dict(zip(space.names, random.random(len(space.names)).tolist(), strict=True))
        shown = loss_of(values, dict(space.start), shared=space.shared, safe=space.safe)
        assert shown == space.heads(values)


def test_overlaps_ranks_and_thresholds() -> None:
    truth = {
        "images": [{"id": 1}],
        "categories": [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 0, "bbox": [0, 0, 10, 10]},
            {"id": 2, "image_id": 1, "category_id": 0, "bbox": [50, 50, 10, 10], "iscrowd": 1},
        ],
    }
    boxes = {0.1: [0, 0, 10, 5], 0.9: [0, 0, 10, 10], 0.4: [30, 30, 5, 5], 0.2: [50, 50, 10, 10]}
    found = [
        {"image_id": 1, "category_id": 0, "bbox": box, "score": score}
        for score, box in boxes.items()
    ]
    found.append({"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "score": 0.95})
    matches = match(truth, found)
    assert matches.scores.tolist() == [0.95, 0.9, 0.4, 0.2, 0.1]
    assert matches.overlaps.tolist() == [0, 1, 0, 0, 0.5]
    assert matches.correct.tolist() == [False, True, False, False, False]
    assert matches.ignored.tolist() == [False, False, False, True, False]
    assert (matches.objects, matches.best_threshold) == (1, 0.9)
    nothing = match(truth, [])
    assert nothing.best_threshold == math.inf


def test_rank_correlation_is_spearmans() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    a, b = random.integers(0, 9, 50).astype(float), random.random(50)
    assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert rank_correlation(np.ones(5), b[:5]) is None


def test_calibrated_scores_are_shown() -> None:
    probability = score_map({"calibration": {"scale": 2.0, "shift": 1.0}})
    assert probability(0.5) == pytest.approx(1 / (1 + math.exp(-1)))
    assert score_map({})(0.3) == pytest.approx(0.3)
    assert 0 <= probability(0.0) < probability(1.0) <= 1


def test_the_gallery_begins_where_losses_differ(tmp_path: Path) -> None:
    import torch

    from paploss.data import shapes

    dataset = shapes("test", images=4, size=64, seed=3)
    truth = dataset.ground_truth()
    perfect = [a | {"score": 0.9} for a in truth["annotations"]]
    third = dataset.records[2].image_id
    blind = [found for found in perfect if found["image_id"] != third]
    runs = [write_run(tmp_path / name, tmp_path, loss=name) for name in ("one", "other")]
    groups = group_runs(*read_runs(runs, Notes()))
    pair = [(groups[0], match(truth, perfect)), (groups[1], match(truth, blind))]
    pictures = make_gallery(dataset, pair, images=2)
    assert pictures[0].name == f"image {third}"
    objects = int((~torch.from_numpy(dataset.records[2].crowd)).sum())
    assert [view.summary.partition(" of")[0] for view in pictures[0].views] == [str(objects), "0"]
    assert pictures[0].source.startswith("data:image/webp;base64,")


def test_the_shown_split_is_the_test_split_or_what_was_cut(data: Path) -> None:
    settings = {"path": "shapes", "train_split": "train", "evaluation_split": None, "seed": 0,
                "test_split": None, "evaluation_fraction": 0.25, "images": 8,
                "evaluation_images": 3, "size": 64}  # fmt: skip
    assert len(load_shown_split({"data": settings})) == 2
    assert len(load_shown_split({"data": settings | {"test_split": "test"}})) == 3


# ---------------------------------------------------------------- strangers and accidents


def test_names_from_data_stay_text(tmp_path: Path, data: Path) -> None:
    run = write_run(tmp_path / "a&b<i>", data, loss='x" onload="alert(1)')
    page = write_report([run]).read_text()
    assert "<script>alert" not in page
    assert 'onload="alert' not in page
    assert "a&b<i>" not in page
    assert "\\u0026lt;script\\u0026gt;alert(1)" in page, "in a figure"
    assert "&lt;script&gt;alert(1)" in page, "in the gallery"


def test_a_search_shows_everything(search: Path) -> None:
    report = gather([search])
    assert not report.notes
    assert report.summary.title == "A loss searched for retinanet on shapes"
    assert [group.label for group in report.groups] == ["searched", "focal+l1"]
    names = {figure.name for figure in report.figures}
    assert names == {
        "functions-search-detector",
        "search-rewards",
        "trials-search",
        "importance-search",
        "training",
        "evaluation",
        "score-overlap",
    }
    functions = report.sections[0].figures[0]
    assert len(functions.panels) == 5
    assert [frame.label.partition(":")[0] for frame in functions.frames] == [
        *(f"Round {k} of 4" for k in range(1, 5)),
        "Answer",
    ]
    linear, answer = functions.frames[0].points[0], functions.frames[-1].points[0]
    assert linear[1] == pytest.approx(linear[0]), "round 1 starts from f(x) = x"
    assert answer != linear
    outcomes = report.sections[1].figures[0].panels[2]
    assert [series.name for series in outcomes.series] == ["complete", "collapsed"]
    training = report.sections[2].figures[0]
    assert "Gradient at the two branches" in [panel.title for panel in training.panels]
    assert len(report.pictures) == 8
    assert len(report.pictures[0].views) == 2


def test_figures_for_papers(search: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "page.html", tmp_path / "figures"
    result = CliRunner().invoke(app, ["report", str(search), f"--out={out}", f"--figures={folder}"])
    assert result.exit_code == 0, result.output
    assert "page.html" in result.output.replace("\n", "")
    assert out.stat().st_size < 5_000_000
    drawn = sorted(folder.glob("*.png"))
    assert len(drawn) == 7
    for path in drawn:
        assert path.with_suffix(".svg").exists()
        pixels = np.asarray(Image.open(path).convert("L"))
        assert (pixels < 200).mean() > 0.003, f"{path.name} is blank"


BREAKS = {
    "nothing but an empty directory": [],
    "config.yaml": b"detector: [unclosed",
    "metrics.csv": b"step,epoch,loss\n10,0.5,0.3\n20,1.",
    "evaluation.json": b'{"test": {"metrics": {"AP": 0.4',
    "evaluation.json of another kind": b'{"test": {"metrics": {"AP": "high"}, "per_class": [1]}}',
    "detections.json": b'[{"image_id": 1, "category_id": 0, "bbox": [1, 2',
    "detections.json of other images": b'[{"image_id": 9, "category_id": 0, "bbox": [1, 2, 3, 4], '
    b'"score": 1}]',
    "study.db": b"SQLite format 3\0 and then nothing",
    "best.loss.json": b'{"format": "paploss',
}


@pytest.mark.parametrize("fault", BREAKS)
def test_a_broken_run_gives_a_page_and_a_note(
    fault: str, search: Path, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    name = fault.partition(" ")[0]
    if not BREAKS[fault]:
        run.mkdir()
        name = "config.yaml"
    elif name in ("study.db", "best.loss.json"):
        shutil.copytree(search, run, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
        (run / name).write_bytes(bytes(BREAKS[fault]))
    else:
        write_run(run, data)
        (run / name).write_bytes(bytes(BREAKS[fault]))
    report = gather([run])
    quiet = fault in (
        "metrics.csv",
        "evaluation.json of another kind",
    )  # readable as far as it goes
    assert bool(report.notes) != quiet, report.notes
    if not quiet:
        assert any(name in note for note in report.notes)
    page = write_report([run]).read_text()
    assert page.endswith("</html>")
    for note in report.notes:
        assert note.partition("(")[0].strip()[:60] in page


def test_images_that_are_gone_are_noted(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    run = write_run(tmp_path / "run", data)
    shutil.rmtree(data)
    report = gather([run])
    assert any(note.startswith(f"images of {data}: left out") for note in report.notes)
    assert report.summary.ap == "40.0"


def test_a_search_under_way_is_shown_as_far_as_it_is(search: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(search, run, ignore=shutil.ignore_patterns("final", "*.json", ".lock"))
    report = gather([run])
    assert report.summary.ap == ""
    assert "functions-run-detector" in {figure.name for figure in report.figures}
    assert any("has not come to its end" in note for note in report.notes)


def test_no_run_is_bad_use(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    with pytest.raises(ValueError, match="at least one run directory"):
        write_report([])


def test_detections_are_kept_by_rank(tmp_path: Path) -> None:
    from paploss.training.run import RunDirectory

    found = [
        {"image_id": image, "category_id": 0, "bbox": [1 / 3, 0, 1, 1], "score": k / 1000}
        for image in (1, 2)
        for k in range(150)
    ]
    RunDirectory(tmp_path).write_detections(found)
    kept = json.loads((tmp_path / "detections.json").read_text())
    assert len(kept) == 200
    assert min(record["score"] for record in kept) == 0.05
    assert kept[0]["bbox"] == [0.33, 0, 1, 1]


def test_hostile_names_in_legends(tmp_path: Path, data: Path) -> None:
    run = write_run(tmp_path / "run", data, loss=HOSTILE)
    figures = gather([run, write_run(tmp_path / "two", data)]).figures
    assert any(series.name == HOSTILE for series in figures[0].legend())
