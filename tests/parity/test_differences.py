"""The pages of differences tell every recorded case that carries a reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "differences.py"
spec = importlib.util.spec_from_file_location("differences", TOOL)
assert spec is not None
assert spec.loader is not None
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@pytest.mark.parametrize("name", tool.PAGES)
def test_a_page_has_the_recorded_cases_of_its_topics(name: str) -> None:
    text = tool.path_of(name).read_text("utf-8")
    assert text == tool.page(name, text), "run: python tools/differences.py"


def test_every_topic_that_differs_has_a_page() -> None:
    told = {topic for topics in tool.PAGES.values() for topic in topics.split()}
    assert tool.topics_with_reasons() <= told
