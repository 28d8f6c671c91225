"""The twins are registered when Dynamo is first imported, and Dynamo is not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = """
from tensordict.compile import registration as twins
assert len(twins._registered) == len({id(native) for native, _ in twins.pairs()}) > 20
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_package_leaves_dynamo_out():
    run("import sys, tensordict; assert 'torch._dynamo' not in sys.modules")


def test_using_the_package_leaves_dynamo_out():
    run(
        "import sys, torch, pickle, copy\n"
        "from tensordict import TensorDict\n"
        "td = TensorDict(a=torch.ones(3), n={'b': torch.ones(3)}, batch_size=[3])\n"
        "td = (td + 1).view(-1)[0].clone(); repr(td); copy.deepcopy(td)\n"
        "pickle.loads(pickle.dumps(td)); torch.stack([td, td]).apply(abs)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo, tensordict",
        "import tensordict, torch; torch.compile(lambda x: x)",
    ],
)
def test_the_first_import_registers(code):
    run(code + CHECK)


def test_looking_for_the_module_does_not_use_up_the_hook():
    run(
        "import sys, tensordict, importlib.util\n"
        "for _ in range(3):\n"
        "    spec = importlib.util.find_spec('torch._dynamo')\n"
        "    assert spec.origin.endswith('__init__.py')\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "import torch._dynamo" + CHECK
    )


def test_the_module_keeps_its_own_loader():
    run(
        "import tensordict, torch._dynamo, importlib.machinery, sys\n"
        "loader = torch._dynamo.__spec__.loader\n"
        "assert type(loader) is importlib.machinery.SourceFileLoader\n"
        "assert torch._dynamo.__loader__ is loader\n"
        "names = [getattr(f, 'name', None) for f in sys.meta_path]\n"
        "assert 'torch._dynamo' not in names"
    )


def test_an_import_in_a_thread_registers():
    run(
        "import tensordict, threading, importlib\n"
        "ts = [threading.Thread(target=importlib.import_module, args=('torch._dynamo',))"
        " for _ in range(4)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]" + CHECK
    )


def test_an_import_that_fails_leaves_the_hook():
    run(
        "import sys, tensordict\n"
        "sys.modules['torch._dynamo.convert_frame'] = None\n"
        "try:\n"
        "    import torch._dynamo\n"
        "    raise SystemExit('it should have failed')\n"
        "except ImportError:\n"
        "    pass\n"
        "names = [getattr(f, 'name', None) for f in sys.meta_path]\n"
        "assert 'torch._dynamo' in names"
    )


def test_registering_again_changes_nothing():
    run(
        "import tensordict, torch._dynamo\n"
        "from tensordict.compile import registration as twins\n"
        "twins.install(); twins.register_twins()" + CHECK
    )
