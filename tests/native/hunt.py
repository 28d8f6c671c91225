"""The hunt: ``python hunt.py FOLDER GROUP...`` does everything to containers that is wrong.

Each group has cases; a case is a name and a function. Each group runs in a process of its
own, forked from this one, which notes in ``FOLDER/GROUP`` what it is about to do. A case may
raise any ``Exception``. What must not be: a process that dies, one that stands still, and
what is raised and is no ``Exception``, such as a panic of Rust. Such a case is printed as a
line of JSON, and the group goes on behind it.

``TENSORDICT_HUNT=long`` in the environment takes minutes and not seconds, ``--only TEXT``
runs the cases whose names contain it, and ``--times N`` N times as many. The cases are drawn at random,
the same ones each time: the name of a case is its seed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import mmap
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
from meddling import (  # noqa: E402
    ACTIONS,
    HOOKS,
    TRIGGER,
    Object,
    callback,
    collections,
    dictionaries,
    other_memory,
)
from programs import containers, names, programs  # noqa: E402

import tensordict  # noqa: E402
from tensordict import TensorDict, _rust, lazy_stack  # noqa: E402

Case = tuple[str, Callable[[], Any]]

STANDSTILL_S = 60  # after so long in one case a process stands still
CASE_S = 8  # of processor time: what Python code may take before it is interrupted
MOST_DEATHS = 20  # after so many processes a group is given up
MEMORY = 4 << 30  # what a group may take besides


class TooLong(BaseException):
    """A case did not end."""


class Hunt:
    """State that the groups share: programs, containers, and the number of cases."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder = folder
        self.times = times
        self.space = names()
        self.space |= {"F": callback, "F2": callback, "D": str(folder / "save")}
        self.programs = programs()
        self.kinds = containers()

    def make(self, kind: str) -> dict[str, Any]:
        """Names with a new container ``td`` among them."""
        space = dict(self.space)
        exec(self.kinds[kind], space)
        return space

    def draws(
        self, group: str, per_program: int
    ) -> Iterator[tuple[str, random.Random]]:
        """Each program, with a source of choices, as often as there are to be cases."""
        for number in range(per_program * self.times):
            for text in self.programs:
                yield text, random.Random(f"{group} {number} {text}")

    def run(self, text: str, space: dict[str, Any]) -> None:
        exec(self.programs[text], space)


# --- The groups ---------------------------------------------------------------------------


COMMON = ["flat", "nested", "lazy", "tc"]


def callbacks(hunt: Hunt) -> Iterator[Case]:
    """Callbacks that change what is walked, from everywhere that Python runs."""
    kinds = [*hunt.kinds, *COMMON * 6]
    last = 6 if hunt.times == 1 else 30
    for text, choose in hunt.draws("callbacks", 1):
        kind, hook = choose.choice(kinds), choose.choice(HOOKS)
        action, again = choose.choice(ACTIONS), choose.random() < 0.2
        name = f"{text} | {kind} | {hook.__name__} | {action.__name__}"

        def case(text=text, kind=kind, hook=hook, action=action, again=again):
            # At the first call, at the second, and so on until there is none.
            for at in range(1, last):
                space = hunt.make(kind)
                random.seed(f"{text} {at}")
                with hook(space["td"]):
                    TRIGGER.arm(space["td"], action, at, again)
                    try:
                        hunt.run(text, space)
                    except Exception:  # noqa: BLE001, S110 - any is fine
                        pass
                    finally:
                        has_ended = TRIGGER.left > 0
                        TRIGGER.disarm()
                if has_ended:
                    break

        yield name + (" again" if again else ""), case


GARBAGE: list[Callable[[], Any]] = [
    lambda: None,
    lambda: 0,
    lambda: -1,
    lambda: 2**70,
    lambda: float("nan"),
    lambda: "text",
    lambda: b"bytes",
    lambda: (),
    list,
    dict,
    lambda: [None],
    lambda: (1, 2, 3),
    lambda: torch.Size([2]),
    lambda: torch.Size([]),
    lambda: torch.Size([5, 6, 7]),
    lambda: (-1,),
    lambda: (2**62, 2**62),
    lambda: torch.Size([2**40]),
    lambda: ("a", None),
    object,
    lambda: Object,
    Object,
    lambda: torch.zeros(2),
    lambda: {"a": None},
    lambda: {1: 2, (): {}, ("a", "b"): torch.ones(1)},
    lambda: {"a": {"b": torch.ones(2, 3)}},
    lambda: {"a": Object(), "b": TensorDict()},
    lambda: TensorDict({"a": torch.ones(2, 3)}, [2, 3]),
    lambda: TensorDict.__new__(TensorDict),
    lambda: [TensorDict.__new__(TensorDict)],
    lambda: [TensorDict({"a": torch.ones(3)}, [3]), 7],
    lambda: type("Entries", (dict,), {"__getitem__": lambda *_: 1 / 0})(a=1),
    lambda: int,
    lambda: lambda *_: None,
]


def states(hunt: Hunt) -> Iterator[Case]:
    """Instances whose attributes are missing, or of another type than they should be."""
    kinds = list(hunt.kinds)
    for text, choose in hunt.draws("states", 2):
        kind, seed = choose.choice(kinds), choose.random()

        def case(text=text, kind=kind, seed=seed):
            choose = random.Random(seed)
            space = hunt.make(kind)
            td = space["td"]
            inner = collections(td)
            for _ in range(choose.choice([1, 1, 2])):
                broken = choose.choice(inner)
                attributes = list(vars(broken)) or ["_tensordict"]
                attribute = choose.choice(attributes)
                with contextlib.suppress(AttributeError):
                    if choose.random() < 0.2:
                        object.__delattr__(broken, attribute)
                    else:
                        value = choose.choice(GARBAGE)()
                        object.__setattr__(broken, attribute, value)
            hunt.run(text, space)

        yield f"{text} | {kind} | {seed}", case


ODD_KEYS: list[Any] = [
    "",
    "a.b",
    "\0",
    "a" * 10_000,
    "\ud800",
    "\N{SNOWMAN}",
    "..",
    "/",
    (),
    ("a",),
    ("a", ()),
    (("a", ("b",)),),
    ("a", 1),
    [],
    ["a"],
    None,
    Ellipsis,
    0,
    -1,
    2**70,
    1.5,
    b"a",
    slice(None),
    object(),
    Object(),
    type("Text", (str,), {"__hash__": lambda self: 1 / 0})("a"),
    type("Pair", (tuple,), {"__len__": lambda self: 10**9})(("a", "b")),
    type("Many", (tuple,), {"__iter__": lambda self: 1 / 0})(("a", "b")),
    ("n",) * 3000,
    "keys",
    "_tensordict",
    "batch_size",
    torch.zeros(()),
    {"a"},
    {"a": 1},
]

BY_KEY = """
td.get(K) | td[K] | td.set(K, T([2, 3])) | td.__setitem__(K, T([2, 3])) | td.pop(K, None)
td.select(K, strict=False) | td.exclude(K) | td.rename_key_(K, 'q') | td.rename_key_('a', K)
td.del_(K) | K in td | K in td.keys(True) | td.update({K: T([2, 3])}) | td.setdefault(K, 0)
td.flatten_keys(K) | td.unflatten_keys(K) | td.split_keys([K]) | TensorDict({K: 0}, [])
td.get_at(K, 0) | td.set_at_(K, 0, 0) | td.fill_(K, 0) | td.create_nested(K) | td.set_(K, 1)
td.get_non_tensor(K) | td.set_non_tensor(K, 1) | td.entry_class(K) | td.separates(K)
td.update(td, keys_to_update=[K]) | td.replace({K: 1}) | td.cat_tensors(K, 'a', out_key='q')
td.memmap(D) and None | td.cat_tensors('a', out_key=K) | unravel_key(K) | getattr(td, K)
td.make_memmap(K, [2]) | unravel_key_list([K]) | td.apply(F, K) | TensorDict.fromkeys([K])
tensordict.nn.TensorDictModule(F, [K], [K])(td) | td.lazy_stack(K) | td.names.index(K)
setattr(td, 'names', [K, K]) | td.to_struct_array() | str(td) | td.to_dict() | td.clone()
td.flatten_keys() | td + td | td == td | td.state_dict() | pickle.dumps(td) | td[K] | td[K, K]
td.keys(sort=True) | list(td.items(True, True, sort=True)) | torch.stack([td, td]) | td.view(-1)
td.consolidate() | td.to_pytree() | td.from_dict({K: {K: 1}}) | td.get((K, K)) | td.pop((K, 'a'))
"""


def keys(hunt: Hunt) -> Iterator[Case]:
    """Keys that are none, in dictionaries and as arguments."""
    texts = [
        text.strip()
        for line in BY_KEY.strip().splitlines()
        for text in line.split(" | ")
    ]
    codes = {text: compile(text, "<program>", "exec") for text in texts}
    kinds = list(hunt.kinds)
    for number in range(max(1, hunt.times)):
        for text, code in codes.items():
            for place, key in enumerate(ODD_KEYS):
                choose = random.Random(f"{number} {text} {place}")
                kind, is_planted = choose.choice(kinds), choose.random() < 0.5

                def case(code=code, key=key, kind=kind, is_planted=is_planted):
                    space = hunt.make(kind)
                    if is_planted:
                        for part in dictionaries(space["td"]):
                            with contextlib.suppress(Exception):
                                part[key] = torch.ones(2, 3)
                    space["K"] = key
                    exec(code, space)

                yield f"{text} | {kind} | key {place} planted {is_planted}", case


def _odd_tensors() -> dict[str, Callable[[], Any]]:
    from torch._subclasses import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    ones = torch.ones(2, 3)
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def freed() -> torch.Tensor:
        tensor = torch.ones(2, 3)
        tensor.untyped_storage().resize_(0)
        return tensor

    def short() -> torch.Tensor:
        tensor = torch.ones(2, 3)
        tensor.untyped_storage().resize_(8)
        return tensor

    def out_of_graph() -> torch.Tensor:
        tensor = torch.ones(2, 3, requires_grad=True)
        return (tensor * 2).view(2, 3)

    def dead_wrapper() -> torch.Tensor:
        kept = []
        torch.vmap(lambda t: kept.append(t) or t)(ones)
        return kept[0]

    def dead_grad() -> torch.Tensor:
        kept = []
        torch.func.grad(lambda t: kept.append(t) or t.sum())(ones)
        return kept[0]

    class Unset(torch.Tensor):
        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (2, 3))

        __torch_dispatch__ = classmethod(lambda cls, *a, **k: NotImplemented)

    return {
        "meta": lambda: ones.to("meta"),
        "sparse": lambda: ones.to_sparse(),
        "sparse csr": lambda: ones.to_sparse_csr(),
        "quantized": lambda: torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([ones[0], ones[1, :2]]),
        "jagged": lambda: torch.nested.nested_tensor(
            [ones[0], ones[1, :2]], layout=torch.jagged
        ),
        "fake": lambda: fake.from_tensor(ones),
        "dead vmap": dead_wrapper,
        "dead grad": dead_grad,
        "two": lambda: TwoTensor(ones, ones),
        "unset": Unset,
        "as subclass": lambda: ones.as_subclass(type("Sub", (torch.Tensor,), {})),
        "parameter": lambda: torch.nn.Parameter(ones.clone()),
        "buffer": lambda: torch.nn.Buffer(ones.clone()),
        "uninitialized": torch.nn.UninitializedParameter,
        "conj": lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
        "neg": lambda: torch.ones(2, 3, dtype=torch.complex64).conj().imag,
        "float8": lambda: ones.to(torch.float8_e4m3fn),
        "float4": lambda: torch.zeros(2, 3, dtype=torch.uint8).view(
            torch.float4_e2m1fn_x2
        ),
        "bits": lambda: torch.empty(2, 3, dtype=torch.bits8),
        "uint1": lambda: torch.empty(2, 3, dtype=torch.uint1),
        "complex32": lambda: torch.empty(2, 3, dtype=torch.complex32),
        "freed": freed,
        "short": short,
        "expanded": lambda: torch.ones(1).expand(2, 3),
        "overlapping": lambda: torch.as_strided(torch.ones(6), (2, 3), (0, 0)),
        "no elements": lambda: torch.ones(2, 3, 0),
        "many dims": lambda: torch.ones([2, 3] + [1] * 60),
        "in a graph": out_of_graph,
        "inference": lambda: _inference(ones),
        "scalar": lambda: torch.tensor(1),
        "mkldnn": lambda: ones.to_mkldnn(),
        "empty new": lambda: torch.Tensor(),
        "class": lambda: torch.Tensor,
        "view of bytes": lambda: torch.frombuffer(
            bytearray(24), dtype=torch.float32
        ).view(2, 3),
        "mapped": lambda: tensordict.MemoryMappedTensor.from_tensor(ones),
        "unbatched": lambda: tensordict.UnbatchedTensor(ones),
        "array": lambda: ones.numpy(),
        "storage": lambda: ones.untyped_storage(),
    }


def _inference(ones: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return ones.clone()


OURS = re.compile(
    r"^td\.(memmap|save|dumps|consolidate|keys|unbind|view|select|exclude|flatten_keys)"
)


def tensors(hunt: Hunt) -> Iterator[Case]:
    """Tensors of every odd kind, put behind the back of the container, or by ``set``."""
    odd = _odd_tensors()
    kinds = list(hunt.kinds)
    dense = ["flat", "nested", "tc", "typed", "params"]
    for text, choose in hunt.draws("tensors", 1):
        kind, which, seed = (
            choose.choice(kinds),
            choose.choice(list(odd)),
            choose.random(),
        )
        if which in ("freed", "short"):
            # Torch itself reads beyond the end of these: they are only for what we read.
            if not OURS.search(text):
                continue
            kind = choose.choice(dense)

        def case(text=text, kind=kind, which=which, seed=seed):
            choose = random.Random(seed)
            space = hunt.make(kind)
            tensor = odd[which]()
            if choose.random() < 0.3:
                with contextlib.suppress(Exception):
                    space["td"].unlock_().set("a", tensor)
            else:
                for part in dictionaries(space["td"]):
                    for key in list(part):
                        if choose.random() < 0.6:
                            part[key] = tensor
            hunt.run(text, space)

        yield f"{text} | {kind} | {which} | {seed}", case


class Number:
    """A number that runs Python whenever it is used as one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self):
        TRIGGER()
        return self.number

    __int__ = __index__

    def __float__(self):
        TRIGGER()
        return 1.5


ODD_ARGUMENTS: list[Callable[[], Any]] = [
    *GARBAGE,
    lambda: Number(0),
    lambda: Number(2**70),
    lambda: [Number(1), Number(-1)],
    lambda: (Number(1), Object()),
    lambda: callback,
    lambda: "a",
    lambda: ("n", "b"),
    lambda: ["a", "d"],
    lambda: 1,
    lambda: -1,
    lambda: 2**62,
    lambda: -(2**63),
    lambda: slice(None, None, -1),
    lambda: slice(Number(0), Object(), Number(1)),
    lambda: (Ellipsis, Ellipsis),
    lambda: torch.tensor([0, 1]),
    lambda: torch.tensor([True, False]),
    lambda: torch.float64,
    lambda: torch.device("meta"),
    lambda: (item for item in (1, 2)),
    lambda: iter(Object()),
    lambda: {"x": Object()},
    lambda: True,
    lambda: TensorDict({"a": torch.ones(2, 3)}, [2, 3]),
    lambda: lazy_stack([TensorDict({"a": torch.ones(3)}, [3])] * 2),
    lambda: [TensorDict({"a": torch.ones(2, 3)}, [2, 3])] * 2,
]

NOT_CALLED = frozenset(
    "map map_iter send recv isend irecv gather_and_stack init_remote from_remote_init reduce "
    "broadcast all_gather share_memory_ share_memory compile to_h5 from_h5 pin_memory "
    "save dump load load_memmap memmap memmap_ memmap_like dumps from_schema record_stream "
    "__class__ __del__ __init_subclass__ __subclasshook__ __getattribute__ __setattr__ "
    "__delattr__ __new__ __reduce_ex__ __reduce__ __format__ __sizeof__ from_consolidated "
    "make_memmap make_memmap_from_storage make_memmap_from_tensor xpu ipu mtia cuda".split()
)


def arguments(hunt: Hunt) -> Iterator[Case]:
    """Every method with arguments that are none, or that change the container when asked."""
    kinds = list(hunt.kinds)
    for number in range(hunt.times):
        # In the short form every eighth kind: the methods are mostly the same ones.
        for kind in kinds if hunt.times > 1 else kinds[::8]:
            cls = type(hunt.make(kind)["td"])
            for method in sorted(dir(cls)):
                if method in NOT_CALLED or (method[0] == "_" and method[1] != "_"):
                    continue
                seed = f"{number} {kind} {method}"

                def case(kind=kind, method=method, seed=seed):
                    choose = random.Random(seed)
                    td = hunt.make(kind)["td"]
                    count = choose.choice([0, 1, 1, 1, 2, 2, 3, 4])
                    given = [choose.choice(ODD_ARGUMENTS)() for _ in range(count)]
                    TRIGGER.arm(td, choose.choice(ACTIONS), choose.randint(1, 4), True)
                    try:
                        found = getattr(td, method)(*given)
                        if hasattr(found, "__next__"):
                            for _ in zip(range(50), found, strict=False):
                                pass
                    finally:
                        TRIGGER.disarm()

                yield seed, case


def primitives(hunt: Hunt) -> Iterator[Case]:
    """The functions of the extension themselves, which trust nobody."""
    for number in range(20 * hunt.times):
        for name in sorted(dir(_rust)):
            if name.startswith("_") or "lock" in name.lower():
                continue
            seed = f"{number} {name}"

            def case(name=name, seed=seed):
                choose = random.Random(seed)
                td = hunt.make(choose.choice(["flat", "nested", "lazy", "tc", "sub"]))[
                    "td"
                ]
                count = choose.choice([1, 1, 2, 2, 3, 3, 4, 5, 6])
                given = [choose.choice(ODD_ARGUMENTS)() for _ in range(count)]
                given[choose.randrange(count)] = td
                if choose.random() < 0.3:
                    given[choose.randrange(count)] = [td, td.clone(False)]
                TRIGGER.arm(td, choose.choice(ACTIONS), choose.randint(1, 4), True)
                try:
                    getattr(_rust, name)(*given)
                finally:
                    TRIGGER.disarm()

            yield seed, case


def sizes(hunt: Hunt) -> Iterator[Case]:
    """Batch sizes that no memory holds."""
    for text, choose in hunt.draws("sizes", 1):
        size = choose.choice(
            [[2**40], [2**62], [2**63 - 1], [2**40, 2**40], [2, 2**62]]
        )
        which = choose.choice(["empty", "view", "text"])

        def case(text=text, size=size, which=which):
            space = dict(hunt.space)
            td = TensorDict({}, size)
            if which == "view":
                td = TensorDict({"n": td}, [])._get_sub_tensordict(())
            elif which == "text":
                td = TensorDict({"s": "text"}, size)
            space["td"] = td
            with contextlib.suppress(TooLong):  # a loop over all rows is allowed to
                signal.setitimer(signal.ITIMER_VIRTUAL, 1.0)
                hunt.run(text, space)

        yield f"{text} | {size} | {which}", case


# From 3.12 on the interpreter counts its own calls in C and does not measure them: its
# pickles of deep nesting need more.
STACKS = [512 << 10, 1 << 20, 8 << 20]
if sys.version_info >= (3, 12):
    STACKS = [2 << 20, 8 << 20]


def depths(hunt: Hunt) -> Iterator[Case]:
    """Nested containers near the limit on stacks of every size, and ones in themselves."""

    def nested(levels: int) -> TensorDict:
        td = TensorDict({"a": torch.ones(2, 3)}, [2, 3])
        for _ in range(levels):
            outer = TensorDict({}, [2, 3])
            outer._tensordict["n"] = td
            td = outer
        return td

    def in_itself() -> TensorDict:
        td = nested(2)
        td._tensordict["n"]._tensordict["b"] = td
        return td

    def stack_of_itself() -> Any:
        stack = lazy_stack([nested(1), nested(1)])
        stack.tensordicts[0]._tensordict["b"] = stack
        return stack

    makers = {
        "in itself": in_itself,
        "stack of itself": stack_of_itself,
        **{
            f"{levels} levels": lambda n=levels: nested(n)
            for levels in (60, 400, 980, 5000)
        },
    }
    for text, choose in hunt.draws("depths", 1):
        if hunt.times == 1 and choose.random() < 0.75:
            continue  # The deepest ones take most of the hunt.
        which = choose.choice(list(makers))
        stack = choose.choice(STACKS)
        limit = choose.choice([1000, 1000, 20_000]) if stack == 8 << 20 else 1000

        def case(text=text, which=which, stack=stack, limit=limit):
            space = dict(hunt.space, td=makers[which]())
            failed: list[BaseException] = []

            def work() -> None:
                try:
                    hunt.run(text, space)
                except Exception:  # noqa: BLE001, S110 - any is fine
                    pass
                except BaseException as error:  # noqa: BLE001
                    failed.append(error)

            before = threading.stack_size(stack), sys.getrecursionlimit()
            sys.setrecursionlimit(limit)
            try:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            finally:
                threading.stack_size(before[0])
                sys.setrecursionlimit(before[1])
                _take_apart(space.pop("td"))
            if failed:
                raise failed[0]

        yield f"{text} | {which} | stack {stack >> 10} KiB, limit {limit}", case


def _take_apart(td: Any) -> None:
    """Free nested containers level by level: torch frees tensors in wrappers recursively."""
    while isinstance(td, TensorDict):
        inner = td._tensordict.pop("n", None)
        td._tensordict.clear()
        td = inner


def threads(hunt: Hunt) -> Iterator[Case]:
    """Eight threads that do anything with the same containers.

    None gives a tensor other memory: threads that compute with it meanwhile read what was
    freed, and a program of torch alone ends like that, too. None records gradients: one
    thread of torch holds a lock of a leaf and waits for the interpreter
    (``grad_accumulator``), another one has that and waits for the lock (``fw_grad``).
    """
    actions = [action for action in ACTIONS if action is not other_memory]
    texts = [text for text in hunt.programs if "D" not in text.split("(")[-1]]

    def case(seed: int, seconds: float) -> None:
        choose = random.Random(seed)
        shared = [hunt.make(choose.choice(list(hunt.kinds)))["td"] for _ in range(4)]
        failed: list[BaseException] = []
        end = time.monotonic() + seconds

        def work(number: int) -> None:
            choose = random.Random(f"{seed} {number}")
            torch.set_grad_enabled(False)  # of this thread
            while time.monotonic() < end and not failed:
                space = dict(hunt.space, td=choose.choice(shared))
                try:
                    if choose.random() < 0.1:
                        choose.choice(actions)(space["td"])
                        place = choose.randrange(len(shared))
                        shared[place] = hunt.make(choose.choice(list(hunt.kinds)))["td"]
                    hunt.run(choose.choice(texts), space)
                except Exception:  # noqa: BLE001, S110 - any is fine
                    pass
                except BaseException as error:  # noqa: BLE001
                    failed.append(error)

        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        sys.setswitchinterval(before)
        if failed:
            raise failed[0]

    for seed in range(2 * hunt.times):
        yield f"eight threads, {seed}", lambda seed=seed: case(seed, 1.2)


def forks(hunt: Hunt) -> Iterator[Case]:
    """Children that are forked while threads save, load and compute."""
    td = TensorDict({f"k{n}": torch.ones(50) for n in range(20)}, [50])
    stop = threading.Event()

    def work(number: int) -> None:
        folder = str(hunt.folder / f"thread{number}")
        while not stop.is_set():
            td.memmap(folder, num_threads=2)
            TensorDict.load_memmap(folder)
            td.consolidate()
            (td + td).clone()

    def child(folder: str) -> None:
        td.memmap(folder)
        loaded = TensorDict.load_memmap(folder)
        assert (loaded == td).all()
        td.consolidate()
        torch.stack([td, td]).unbind(0)

    def case(number: int) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        stop.clear()
        workers = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for worker in workers:
            worker.start()
        try:
            for attempt in range(15):
                pid = os.fork()
                if pid == 0:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(10)
                    status = 1
                    try:
                        with contextlib.suppress(Exception):
                            child(str(hunt.folder / "forked"))
                        status = 0
                    finally:
                        os._exit(status)
                _, status = os.waitpid(pid, 0)
                if status:
                    raise SystemExit(f"the child {attempt} ended with {status}")
        finally:
            stop.set()
            for worker in workers:
                worker.join()

    for number in range(2 * hunt.times):
        yield f"fork {number}", lambda number=number: case(number)


def saves(hunt: Hunt) -> Iterator[Case]:
    """Saves in the background while the tensors become other ones."""

    def changes() -> dict[str, Callable[[torch.Tensor], Any]]:
        def assign(tensor: torch.Tensor) -> None:
            tensor.data = tensor.data.half()

        return {
            "data": assign,
            "set_": lambda tensor: tensor.set_(),
            "set_ other": lambda tensor: tensor.set_(torch.zeros(3)),
            "resize_": lambda tensor: tensor.resize_(1 << 22),
            "t_": lambda tensor: tensor.t_(),
            "swap": lambda tensor: torch.utils.swap_tensors(tensor, torch.ones(1)),
        }

    ways = {
        "memmap": lambda td, folder: td.memmap(
            folder, return_early=True, num_threads=2
        ),
        "one thread": lambda td, folder: td.memmap(
            folder, return_early=True, num_threads=1
        ),
        "plain": lambda td, folder: td.memmap(folder, num_threads=2),
        "consolidate": lambda td, folder: td.consolidate(folder + ".c", num_threads=2),
    }
    for number in range(hunt.times):
        for way, save in ways.items():
            for change, do in changes().items():
                for is_threaded in (False, True):

                    def case(save=save, do=do, is_threaded=is_threaded):
                        td = TensorDict(
                            {f"k{n}": torch.ones(700, 300) for n in range(8)}, []
                        )
                        stop = threading.Event()

                        def meddle():
                            for tensor in list(td.values()):
                                with contextlib.suppress(Exception):
                                    do(tensor)
                            gc.collect(0)

                        def again():
                            while not stop.is_set():
                                meddle()

                        thread = threading.Thread(target=again)
                        if is_threaded:
                            thread.start()
                        try:
                            future = save(td, str(hunt.folder / "saved"))
                            if not is_threaded:
                                # Two threads that resize one tensor end torch itself.
                                meddle()
                            if hasattr(future, "result"):
                                future.result()
                        finally:
                            stop.set()
                            if is_threaded:
                                thread.join()

                    yield f"{way} | {change} | threaded {is_threaded} | {number}", case


def cut_files(hunt: Hunt) -> Iterator[Case]:
    """Saves whose files were cut or changed before they are loaded, or while they are mapped."""
    ways: dict[str, Callable[[Any, Path], Any]] = {
        "tree": lambda td, path: td.memmap(str(path)),
        "consolidated": lambda td, path: (
            path.mkdir(),
            td.consolidate(str(path / "c.bin"), metadata=True),
        ),
    }

    def load(way: str, path: Path) -> Any:
        if way == "tree":
            return TensorDict.load_memmap(str(path))
        return TensorDict.from_consolidated(str(path / "c.bin"))

    for number in range(40 * hunt.times):
        for way, save in ways.items():

            def case(way=way, save=save, number=number):
                choose = random.Random(f"{way} {number}")
                path = hunt.folder / "cut"
                shutil.rmtree(path, ignore_errors=True)
                td = TensorDict(
                    {"a": torch.ones(5000), "n": {"b": torch.ones(40, 30)}}, []
                )
                save(td, path)
                files = sorted(file for file in path.rglob("*") if file.is_file())
                file = choose.choice(files)
                content = bytearray(file.read_bytes())
                if choose.random() < 0.5 or not content:
                    content = content[: choose.randrange(len(content) + 1)]
                else:
                    for _ in range(choose.randint(1, 4)):
                        content[choose.randrange(len(content))] = choose.randrange(256)
                file.write_bytes(content)
                loaded = load(way, path)
                str(loaded)
                loaded.memmap(str(hunt.folder / "copied"))

            yield f"{way} | {number}", case


GROUPS: dict[str, Callable[[Hunt], Iterator[Case]]] = {
    group.__name__: group
    for group in (
        callbacks,
        states,
        keys,
        tensors,
        arguments,
        primitives,
        sizes,
        depths,
        threads,
        forks,
        saves,
        cut_files,
    )
}


# --- Running them ---------------------------------------------------------------------------


class Journal:
    """A note of what a group is doing, in memory that outlives its process."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 8192)

    def write(self, number: int, name: str) -> None:
        text = f"{number} {name}".encode("utf-8", "backslashreplace")[:8000]
        self._page[: len(text) + 1] = text + b"\0"

    def read(self) -> tuple[int, str]:
        text = self._page[:].partition(b"\0")[0].decode(errors="replace")
        number, _, name = text.partition(" ")
        return int(number or -1), name


def serve(hunt: Hunt, group: str, journal: Journal, start: int, only: str) -> None:
    """Run the cases of ``group`` from ``start`` on, in a process of its own."""

    def interrupt(*_: Any) -> None:
        raise TooLong("a case took too long")

    signal.signal(signal.SIGVTALRM, interrupt)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number, (name, case) in enumerate(GROUPS[group](hunt)):
        if number < start or only not in name:
            continue
        journal.write(number, name)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, CASE_S)
            case()
        except Exception:  # noqa: BLE001, S110 - any is fine
            pass
        except BaseException as error:  # noqa: BLE001
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            tell(group, name, f"{type(error).__name__}: {error}")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            sys.settrace(None)
            sys.setprofile(None)
    journal.write(-1, "")


def tell(group: str, name: str, what: str) -> None:
    say(group=group, case=name, what=what)


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def watch(hunt: Hunt, group: str, only: str, verbose: bool) -> None:
    """Run ``group`` in processes of their own until one came to its end."""
    journal, start = Journal(), 0
    journal.write(0, "the beginning")
    for _ in range(MOST_DEATHS):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if not verbose:
                    silence = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(silence, 2)
                else:
                    faulthandler.enable()
                serve(hunt, group, journal, start, only)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        seen, since = journal.read(), time.monotonic()
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.02)
            now = journal.read()
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > STANDSTILL_S:
                os.kill(pid, signal.SIGABRT)
                _, status = os.waitpid(pid, 0)
                status = "it stood still"
                break
        if status == 0:
            return
        number, name = journal.read()
        what = (
            status
            if isinstance(status, str)
            else f"it died: {os.waitstatus_to_exitcode(status)}"
        )
        tell(group, name, what)
        start = number + 1


def main() -> None:
    """Run the groups that are named, all of them where none is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS])
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    times = given.times or (8 if os.environ.get("TENSORDICT_HUNT") == "long" else 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        hunt = Hunt(Path(folder), times)
        os.chdir(folder)  # some programs write files where they are
        for group in given.groups or GROUPS:
            begin = time.monotonic()
            watch(hunt, group, given.only, given.verbose)
            seconds = time.monotonic() - begin
            say(group=group, seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
