"""The README's example prints what the README says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_example_prints_what_it_says() -> None:
    text = README.read_text()
    code, output = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", text, re.DOTALL)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue().strip() == output.strip()
