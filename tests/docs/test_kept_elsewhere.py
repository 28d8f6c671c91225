"""The guide on collections that are kept elsewhere shows what the classes say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "kept_elsewhere.py"
spec = importlib.util.spec_from_file_location("kept_elsewhere", TOOL)
assert spec is not None
assert spec.loader is not None
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def test_the_table_is_that_of_the_classes() -> None:
    text = tool.PAGE.read_text("utf-8")
    assert text == tool.page(text), "run: python tools/kept_elsewhere.py"
