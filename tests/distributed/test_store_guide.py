"""The examples of the guide run on a server."""

import doctest
import re
from pathlib import Path

import pytest

from redis_server import RedisServer

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "stores.md"


def test_the_examples_of_the_guide_run():
    pytest.importorskip("redis")
    server = RedisServer()
    try:
        text = GUIDE.read_text(encoding="utf-8")
        blocks = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        names = {"address": server.address}
        parsed = doctest.DocTestParser().get_doctest(
            "\n".join(blocks), names, "stores.md", "stores.md", 0
        )
        report = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
            parsed, out=report.append
        )
        assert parsed.examples
        assert not report, "".join(report)
    finally:
        server.stop()
