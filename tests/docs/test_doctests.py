"""Every example runs: those of the docstrings, of README.md and of the files in docs/.

The example of a docstring may use ``torch``, the public names of ``tensordict`` and those
of its own module without importing them. The examples of a document import what they
use; they run one after another in an empty folder, those of Python and of the console. A
module that cannot be imported and an example marked ``+SKIP`` are failures; skipped are only those
of a library that is not installed.
"""

import ast
import doctest
import importlib
import pkgutil
import re
import textwrap
import tomllib
import warnings
from pathlib import Path

import pytest
import torch

import tensordict
from console_examples import run_console
from ray_sessions import end_ray
from tensordict import _rust

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tensordict.__file__).parent
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
    "dependency-groups"
]
OPTIONAL = {
    re.split(r"\W", each)[0]
    for name in ("libraries", "dev")
    for each in GROUPS[name]
    if isinstance(each, str)
}
"""The modules that an environment may lack: some have no wheel for the newest Python."""
CUTS_ARE_NOTICED = _rust.shortcuts()["tensors"]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# A block may be part of a list, and be indented.
FENCE = re.compile(
    r"^ *```(?:python|pycon|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL
)


def definitions(node, name):
    """The names and nodes of a module, its classes and its functions, depth first."""
    if isinstance(node, ast.If):
        inner = [*node.body, *node.orelse]
    else:
        yield name, node
        inner = node.body
    for child in inner:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from definitions(child, f"{name}.{child.name}")
        elif isinstance(child, ast.If):
            yield from definitions(child, name)


def docstrings():
    """Each docstring that has an example, and the module that it is in.

    They are read without an import: that of all modules is only for who runs them.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if ">>>" not in text:
            continue
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        for name, node in definitions(ast.parse(text), module):
            text = ast.get_docstring(node, clean=False)
            if text and ">>>" in text:
                yield pytest.param([text], name, module, id=name)


def documents():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = [
            textwrap.dedent(text) for text in FENCE.findall(path.read_text("utf-8"))
        ]
        if blocks:
            yield pytest.param(blocks, path.name, None, id=str(path.relative_to(ROOT)))


@pytest.fixture(autouse=True)
def no_session_of_ray():
    """An example may begin a session of Ray; tests of this process begin their own."""
    yield
    end_ray()


@pytest.mark.parametrize(("texts", "name", "module"), [*docstrings(), *documents()])
def test_examples_of(texts, name, module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    if module is not None:
        around = vars(importlib.import_module(module))
        public = {name: getattr(tensordict, name) for name in tensordict.__all__}
        names = around | public | {"torch": torch, "tensordict": tensordict} | names
    if any("was cut since" in text for text in texts) and not CUTS_ARE_NOTICED:
        pytest.skip("without the shortcuts torch reads mapped rows")
    is_checkout = (ROOT / "rust").is_dir()
    if any("$ make " in text for text in texts) and not is_checkout:
        pytest.skip("its commands are those of the checkout")
    report = []
    for number, text in enumerate(texts):
        if text.startswith("$ "):
            report += run_console(text)
            continue
        if ">>> " not in text:  # a module, as one would write it
            try:
                exec(compile(text, name, "exec"), names)  # noqa: S102
            except ModuleNotFoundError as error:
                if error.name not in OPTIONAL:
                    raise
                pytest.skip(f"could not import {error.name!r}")
            continue
        # A name of its own: functions find their source by it, also in later blocks.
        block = name if len(texts) == 1 else f"{name}, block {number + 1}"
        test = doctest.DocTestParser().get_doctest(text, names, block, block, 0)
        skipped = [e for e in test.examples if e.options.get(doctest.SKIP)]
        assert not skipped, f"an example of {name} is skipped: {skipped[0].source}"
        runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
        runner.run(test, out=report.append, clear_globs=False)
        names = test.globs
    for missing in re.findall(r"No module named '(\w+)'", "".join(report)):
        if missing in OPTIONAL:
            pytest.skip(f"could not import {missing!r}")
    if report:
        pytest.fail("".join(report), pytrace=False)


def test_every_module_can_be_imported():
    for found in pkgutil.walk_packages(tensordict.__path__, "tensordict."):
        if not found.name.endswith("__main__"):
            # A module of deprecated names says so when it is imported.
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                try:
                    importlib.import_module(found.name)
                except ImportError as error:
                    missing = error.__cause__ or error
                    if getattr(missing, "name", None) not in OPTIONAL:
                        raise


def test_a_wrong_example_fails(tmp_path, monkeypatch):
    with pytest.raises(pytest.fail.Exception, match="Expected:"):
        test_examples_of([">>> 1 + 1\n3\n"], "wrong", None, tmp_path, monkeypatch)


def test_a_skipped_example_fails(tmp_path, monkeypatch):
    text = ">>> 1 / 0  # doctest: +SKIP\n"
    with pytest.raises(AssertionError, match="is skipped"):
        test_examples_of([text], "skipped", None, tmp_path, monkeypatch)


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
        test_examples_of([text], "wrong", None, tmp_path, monkeypatch)
