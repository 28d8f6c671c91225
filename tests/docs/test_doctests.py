"""Every example runs: those of the docstrings, of README.md and of the files in docs/.

The example of a docstring may use ``torch``, the public names of ``tensordict`` and those
of its own module without importing them. The examples of a document import what they
use; they run one after another in an empty folder, those of Python and of the console. None is skipped: a module that
cannot be imported and an example marked ``+SKIP`` are failures.
"""

import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import tensordict
from console_examples import run_console

ROOT = Path(__file__).parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# A block may be part of a list, and be indented.
FENCE = re.compile(
    r"^ *```(?:python|pycon|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL
)


def find_modules():
    """The modules of the package, and for each that cannot be imported the reason."""
    imported, broken = [tensordict], []
    for found in pkgutil.walk_packages(tensordict.__path__, "tensordict."):
        if found.name.endswith("__main__"):
            continue
        try:
            # A module of deprecated names says so when it is imported.
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                imported.append(importlib.import_module(found.name))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is reported)
            broken.append(f"{found.name}: {error!r}")
    return imported, broken


MODULES, BROKEN = find_modules()


def members(owner):
    """The functions and classes of this package in ``owner``, depth first."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, functools.cached_property):
            value = value.func
        value = inspect.unwrap(value) if callable(value) else value
        where = getattr(value, "__module__", None) or ""
        if where.partition(".")[0] != "tensordict":
            continue
        if inspect.isclass(value):
            yield value
            if not name.startswith("__"):
                yield from members(value)
        elif inspect.isfunction(value):
            yield value


def docstrings():
    """Each docstring that has an example, once."""
    found = {}
    for module in MODULES:
        found[id(module)] = module
        found |= {id(value): value for value in members(module)}
    for value in found.values():
        text = vars(value).get("__doc__")
        if inspect.isfunction(value):
            text = value.__doc__
        if isinstance(text, str) and ">>>" in text:
            name = value.__name__
            if not inspect.ismodule(value):
                name = f"{value.__module__}.{value.__qualname__}"
            yield pytest.param([text], name, names_around(value), id=name)


def names_around(value):
    """The names of the module that ``value`` is defined in.

    ``__module__`` is no help: some classes carry the name that pickles know them by.
    """
    if inspect.ismodule(value):
        return vars(value)
    if inspect.isclass(value):
        methods = [m for m in vars(value).values() if inspect.isfunction(m)]
        return methods[0].__globals__ if methods else {}
    return value.__globals__


def documents():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = [
            textwrap.dedent(text) for text in FENCE.findall(path.read_text("utf-8"))
        ]
        if blocks:
            yield pytest.param(blocks, path.name, None, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize(("texts", "name", "around"), [*docstrings(), *documents()])
def test_examples_of(texts, name, around, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    if around is not None:
        public = {name: getattr(tensordict, name) for name in tensordict.__all__}
        names = around | public | {"torch": torch, "tensordict": tensordict} | names
    report = []
    for number, text in enumerate(texts):
        if text.startswith("$ "):
            report += run_console(text)
            continue
        if ">>> " not in text:  # a module, as one would write it
            exec(compile(text, name, "exec"), names)  # noqa: S102
            continue
        # A name of its own: functions find their source by it, also in later blocks.
        block = name if len(texts) == 1 else f"{name}, block {number + 1}"
        test = doctest.DocTestParser().get_doctest(text, names, block, block, 0)
        skipped = [e for e in test.examples if e.options.get(doctest.SKIP)]
        assert not skipped, f"an example of {name} is skipped: {skipped[0].source}"
        runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
        runner.run(test, out=report.append, clear_globs=False)
        names = test.globs
    if report:
        pytest.fail("".join(report), pytrace=False)


def test_every_module_can_be_imported():
    assert BROKEN == []


def test_a_wrong_example_fails(tmp_path, monkeypatch):
    with pytest.raises(pytest.fail.Exception, match="Expected:"):
        test_examples_of([">>> 1 + 1\n3\n"], "wrong", {}, tmp_path, monkeypatch)


def test_a_skipped_example_fails(tmp_path, monkeypatch):
    text = ">>> 1 / 0  # doctest: +SKIP\n"
    with pytest.raises(AssertionError, match="is skipped"):
        test_examples_of([text], "skipped", {}, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$ tensordict inspect nothing\n", "status 2"),
        ("$ echo one\ntwo\n", "Expected:"),
        ("$ false\n", "status 1"),
        ("$ make dinner\n", "No rule to make target"),
    ],
)
def test_a_wrong_command_fails(text, message, tmp_path, monkeypatch):
    with pytest.raises(pytest.fail.Exception, match=message):
        test_examples_of([text], "wrong", {}, tmp_path, monkeypatch)
