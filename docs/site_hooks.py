"""What mkdocs cannot do by itself: pages from files outside docs/, from the source and the commands.

* A link to a file outside docs/ (``../results/x.md``, ``../configs/x.yaml``) works in the repository
  as it stands. On the site that file becomes a page of its own, and the link leads there.
* ``<!-- source: paploss.loss.reference.normalized_difference -->`` shows the source of a function.
* ``<!-- commands -->`` lists every command with its arguments and options.
* ``Example:`` of a docstring is shown as code.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import posixpath
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import griffe
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# A link or picture to a relative address; what follows # stays as it is.
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[#)])")
SOURCE = re.compile(r"<!-- source: ([\w.]+) -->")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml"}
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")

_log = logging.getLogger("mkdocs.hooks.paploss")
_origin: dict[str, str] = {}  # of a page made here: the repository's file


def on_files(files: Files, config: Any) -> Files:
    """Make pages of the repository's files that pages link to, and of all results."""
    _origin.clear()
    results = sorted(path.name for path in (ROOT / "results").glob("*.md"))
    waiting = [*ALWAYS, *(f"results/{name}" for name in results)]
    for file in files.documentation_pages():
        waiting += _outside(f"docs/{file.src_uri}", file.content_string)
    while waiting:
        name = waiting.pop()
        uri = _page_of(name)
        if uri in _origin:
            continue
        path = ROOT / name
        if not path.is_file():
            _log.warning("a page links to %s, which is not in the repository", name)
            continue
        _origin[uri] = name
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            waiting += _outside(name, text)
        else:
            text = f"# `{name}`\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"
        files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, "results/index.md", content=_index_of_results(results)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to the site's pages, and fill in sources and commands."""
    uri = page.file.src_uri
    origin = _origin.get(uri, f"docs/{uri}")

    def moved(match: re.Match[str]) -> str:
        target = _target(origin, match[1])
        if target.startswith("docs/"):
            return posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(uri))
        return posixpath.relpath(_page_of(target), posixpath.dirname(uri) or ".")

    if uri != "results/index.md" and not origin.endswith(tuple(LANGUAGES)):
        markdown = LINK.sub(moved, markdown)
    markdown = SOURCE.sub(lambda match: _source(match[1]), markdown)
    return markdown.replace("<!-- commands -->", commands())


def _target(origin: str, link: str) -> str:
    """The file of the repository that a link in another one means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def _outside(origin: str, text: str) -> list[str]:
    """Files outside docs/ that a text links to."""
    targets = (_target(origin, link) for link in LINK.findall(text))
    return [target for target in targets if not target.startswith("docs/")]


def _page_of(name: str) -> str:
    return name if name.endswith(".md") else f"{name}.md"


def _index_of_results(names: list[str]) -> str:
    lines = [
        "# Results",
        "",
        "Every figure stands beside the command that made it, so that you can make it again.",
        "",
    ]
    for name in names:
        first = (ROOT / "results" / name).read_text(encoding="utf-8").splitlines()[0]
        lines.append(f"- [{first.lstrip('# ')}]({name})")
    return "\n".join(lines) + "\n"


def _source(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:  # a method
        module, _, owner = module.rpartition(".")
        found = getattr(getattr(importlib.import_module(module), owner), attribute)
    code = inspect.cleandoc("\n" + inspect.getsource(found))
    return f'```python title="{name}"\n{code}\n```'


def commands() -> str:
    """Every command with its arguments and options, from the command line itself."""
    import typer.main

    from paploss.cli.app import app

    return "\n".join(_command(typer.main.get_command(app), ["paploss"]))


def _command(command: Any, names: list[str]) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p
        for p in command.params
        if p.param_type_name == "option" and p.name not in ("install_completion", "show_completion")
    ]
    inner = getattr(command, "commands", {})
    usage = [*names, *(["[OPTIONS]"] if options else []), *map(_usage, arguments)]
    lines = [
        f"## `{' '.join(names)}`",
        "",
        (command.help or "").strip(),
        "",
        "```text",
        " ".join([*usage, *(["COMMAND ..."] if inner else [])]),
        "```",
        "",
    ]
    if arguments or options:
        lines += ["| | | default |", "|---|---|---|"]
        lines += [_row(_usage(p), p) for p in arguments]
        lines += [_row(_flags(p), p) for p in options]
        lines.append("")
    for name, part in inner.items():
        lines += _command(part, [*names, name])
    return lines


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 or argument.multiple else "")
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    name = ", ".join([*option.opts, *option.secondary_opts])
    return name if option.is_flag else f"{name} ..."


def _row(name: str, parameter: Any) -> str:
    default = parameter.default
    shown = "" if default is None or default is False or callable(default) else f"`{default}`"
    text = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        text += " One of " + ", ".join(f"`{choice}`" for choice in get_args(annotation)) + "."
    return f"| `{name}` | {text} | {shown} |"


class Examples(griffe.Extension):
    """Griffe knows the section of a docstring by its plural only."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M
            )
