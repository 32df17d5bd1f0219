"""What the docs say works: programs run, commands parse, settings exist, the site has no dead link."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from paploss.cli.app import app
from paploss.search.config import SearchConfig, load_search_config
from paploss.training.config import load_config

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
WITH_COMMANDS = [*PAGES, ROOT / "README.md", *sorted((ROOT / "configs").glob("*.yaml"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the page's blocks of code; those that include an example are left out."""
    found = BLOCK.findall(page.read_text())
    return [(language, text) for language, _, text in found if "--8<--" not in text]


def with_block(language: str) -> list[Any]:
    pages = [page for page in PAGES if any(block[0] == language for block in blocks(page))]
    return [pytest.param(page, id=page.stem) for page in pages]


@pytest.mark.parametrize("page", with_block("python"))
def test_programs_run_and_print_what_is_said(page: Path) -> None:
    names: dict[str, Any] = {}
    found = blocks(page)
    for (language, text), (following, output) in zip(found, [*found[1:], ("", "")], strict=True):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, str(page), "exec"), names)
        if printed.getvalue():
            assert following == "text", f"{page}: what is printed is not shown"
            assert printed.getvalue().strip() == output.strip()


def test_figures_with_a_spread_are_those_of_the_tables() -> None:
    spread = re.compile(r"\d+\.\d ± \d+\.\d")
    tables = "".join(table.read_text() for table in sorted((ROOT / "results").rglob("*.md")))
    measured = set(spread.findall(tables))
    for page in (ROOT / "README.md", *PAGES):
        told = set(spread.findall(page.read_text()))
        assert told <= measured, (
            f"{page.name}: {sorted(told - measured)} are in no table of results/"
        )


@pytest.mark.parametrize("page", with_block("yaml"))
def test_settings_exist(page: Path, tmp_path: Path) -> None:
    for language, text in blocks(page):
        if language == "yaml":
            file = tmp_path / "config.yaml"
            file.write_text(text)
            searched = yaml.safe_load(text).keys() & SearchConfig.model_fields.keys()
            (load_search_config if searched else load_config)(file)


def commands(page: Path) -> Iterator[list[str]]:
    """Arguments of every paploss command of a page, or of a configuration's comments."""
    text = page.read_text()
    if page.suffix == ".yaml":
        lines = "\n".join(line[1:] for line in text.splitlines() if line.startswith("#   "))
    else:
        lines = "\n".join(block for language, block in blocks(page) if language == "sh")
    for line in lines.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "paploss" in words and (words[0] == "paploss" or "-m" in words):
            yield words[words.index("paploss") + 1 :]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_parse(page: Path, tmp_path: Path) -> None:
    for arguments in commands(page):
        command: Any = typer.main.get_command(app)
        rest = list(arguments)
        if rest[0] == "report":  # whose runs have to be there
            rest = [str(tmp_path) if word.startswith("runs/") else word for word in rest]
        while getattr(command, "commands", None):
            assert rest[0] in command.commands, f"paploss {shlex.join(arguments)}"
            command = command.commands[rest.pop(0)]
        given = command.make_context("paploss", rest).params  # an unknown option raises
        if arguments[0] in ("train", "search"):
            load = load_config if arguments[0] == "train" else load_search_config
            config = given["config"]
            exists = config is not None and config.parts[0] == "configs"
            settings = (setting.partition("=") for setting in given["set_"] or [])
            load(
                ROOT / config if exists else None,
                {key: yaml.safe_load(value) for key, _, value in settings},
            )


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="mkdocs is not installed")
def test_site(tmp_path: Path) -> None:
    """Links and anchors are right, and no page asks another server for anything."""
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//[^>]*", page.read_text()
        )
        assert not [tag for tag in fetched if "canonical" not in tag], page
