"""The twins are registered when Dynamo is first imported, and Dynamo is not before."""

from __future__ import annotations

from separate_process import check_freshly

CHECK = """
from tensordict.compile import registration as twins
assert len(twins._registered) == len({id(native) for native, _ in twins.pairs()}) > 20
"""


def test_using_the_package_leaves_dynamo_out():
    check_freshly(
        "import sys, tensordict; assert 'torch._dynamo' not in sys.modules\n"
        "import torch, pickle, copy\n"
        "from tensordict import TensorDict\n"
        "td = TensorDict(a=torch.ones(3), n={'b': torch.ones(3)}, batch_size=[3])\n"
        "td = (td + 1).view(-1)[0].clone(); repr(td); copy.deepcopy(td)\n"
        "pickle.loads(pickle.dumps(td)); torch.stack([td, td]).apply(abs)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )


def test_dynamo_may_be_imported_first():
    check_freshly("import torch._dynamo, tensordict" + CHECK)


def test_the_hook_outlives_who_only_looks_and_leaves_the_module_its_loader():
    check_freshly(
        "import sys, tensordict, torch, importlib.util, importlib.machinery\n"
        "for _ in range(3):\n"
        "    spec = importlib.util.find_spec('torch._dynamo')\n"
        "    assert spec.origin.endswith('__init__.py')\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "torch.compile(lambda x: x)"
        + CHECK
        + "loader = torch._dynamo.__spec__.loader\n"
        "assert type(loader) is importlib.machinery.SourceFileLoader\n"
        "assert torch._dynamo.__loader__ is loader\n"
        "names = [getattr(f, 'name', None) for f in sys.meta_path]\n"
        "assert 'torch._dynamo' not in names\n"
        "# Registering again changes nothing.\n"
        "twins.install(); twins.register_twins()" + CHECK
    )


def test_an_import_in_a_thread_registers():
    check_freshly(
        "import tensordict, threading, importlib\n"
        "ts = [threading.Thread(target=importlib.import_module, args=('torch._dynamo',))"
        " for _ in range(4)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]" + CHECK
    )


def test_an_import_that_fails_leaves_the_hook():
    check_freshly(
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
