"""Declarations in the body of a class; typed dictionaries of a container."""

from frame import cases, differing


def on_classes(method, names, programs):
    """Each program with each of the classes, as ``C``."""
    return cases(
        method,
        "\n".join(
            f"from class_bodies import {name} as C; {line.strip()}"
            for line in programs.strip().splitlines()
            for name in names.split()
        ),
        on="none",
        message=False,
    )


def as_typed(programs):
    """Each program with ``t``, a typed dictionary of ``td``, checked and not."""
    make = "td = TensorDict(a=T([2, 3]), batch_size=[2]); t = Typed.from_tensordict"
    return cases(
        "from_tensordict",
        "\n".join(
            f"{make}({given}); {line.strip()}"
            for line in programs.strip().splitlines()
            for given in ("td", "td, check=False")
        ),
        on="none",
    )


CASES = [
    *cases("names of fields", "from field_names import refused; refused()", on="none"),
    *as_typed(
        """
        td.batch_size = [2, 3]; t.batch_size, t
        t.batch_size = [2, 3]; td.batch_size, td
        t.batch_size = []; td.batch_size, t[()]
        td.lock_(); t.is_locked
        t.lock_(); td.is_locked
        t.lock_(); td['z'] = T([2])
        td.lock_(); t.unlock_(); td.is_locked
        td.names = ['x']; t.names
        td.auto_device_(); t.device
        td['z'] = T([2]); sorted(t.keys())
        t['z'] = T([2]); sorted(td.keys())
        del td['a']; sorted(t.keys())
        td.flatten_keys(inplace=True); t
        td.rename_key_('a', 'z'); sorted(t.keys())
        td.zero_(); t['a']
        c = t.clone(False); td['z'] = T([2]); sorted(c.keys())
        c = copy.copy(t); td['z'] = T([2]); sorted(c.keys())
        c = copy.deepcopy(t); td.zero_(); c['a']
        pickle.loads(pickle.dumps(t.clone())).batch_size
        p = TensorDict(n=t, batch_size=[2]); td['z'] = T([2]); sorted(p['n'].keys())
        """
    ),
    *on_classes(
        "frozen",
        "AssignsFrozen SetsFrozen GoesAround ChecksFrozen InitFrozen InitFrozenBySet"
        " InitGoesAround",
        """
        C(T([3])).x
        C(T([3]), batch_size=[3])[0].x
        C(T([3])).is_locked
        C.from_tensordict(TensorDict(x=T([3]))).x
        d = C(T([3])); d.x = T([3])
        d = C(T([3])); d.unknown = 3
        d = C(T([3])); d._unknown = 3
        d = C(T([3])); del d.x
        d = C(T([3])); d.batch_size = [3]
        C(T([3])).set('x', T([3]))
        C(T([3])).unlock_().set('x', T([3])).x
        C(x=T([3]), lock=True).x
        """,
    ),
    *cases(
        "frozen",
        """
        from class_bodies import *; SetsFrozen(T([3]), batch_size=[3])[0].y
        from class_bodies import *; GoesAround(T([3]), batch_size=[3]).y
        from class_bodies import *; GoesAround(T([3]), batch_size=[3])[0].y
        from class_bodies import *; GoesAround(T([3]), batch_size=[3]).get('y')
        from class_bodies import *; ChecksFrozen(T([3])).late
        from class_bodies import *; ChecksFrozen(T([3]), late=3).late
        """,
        on="none",
        message=False,
    ),
    *on_classes(
        "plain subclass",
        "Plain Required Hides Vocabulary Extends Posts DecoratedAgain Diamond OtherDiamond",
        """
        sorted(C.__expected_keys__)
        [f.name for f in dataclasses.fields(C)]
        str(__import__('inspect').signature(C)).replace('batch_size=None', 'batch_size')
        is_tensorclass(C), is_tensorclass(C(T([3])))
        C(T([3]), batch_size=[3]).x
        C(T([3]), batch_size=[3])[0].x
        type(C(T([3]), batch_size=[3])[0]).__name__
        type(torch.stack([C(T([3]), batch_size=[3])] * 2)).__name__
        C(T([3]), T([3]), batch_size=[3]).y
        C(T([3]), y=T([3]), batch_size=[3]).y
        C(T([3])).y
        C().x
        C(z=T([3]))
        C.from_tensordict(TensorDict(x=T([3]), y=T([3]))).y
        C.from_dict({'x': T([3])}).x
        v = C.from_dict({'x': T([3]), 'y': NonTensorData(None, batch_size=[3])}, batch_size=[3]); \
v.y, sorted(v._tensordict.keys())
        v = C.from_dict({'x': T([3]), 'y': None}, batch_size=[3]); v.y, sorted(v._tensordict.keys())
        d = C(T([3])); d.y = T([3]); d.y
        d = C(T([3])); d.z = T([3])
        copy.deepcopy(C(T([3]))).x
        pickle.loads(pickle.dumps(C(T([3])))).x
        dataclasses.replace(C(T([3])), x=T([2])).x
        """,
    ),
    *cases(
        "plain subclass",
        """
        from class_bodies import *; Plain(T([3])).count, Plain(T([3])).kind, Plain(T([3])).twice()
        from class_bodies import *; Plain(T([3]), batch_size=[3])[0].twice()
        from class_bodies import *; Extends(T([3]), 'text').note
        from class_bodies import *; Extends(T([3])).before
        from class_bodies import *; Extends(T([3]), 'text').clone().note
        from class_bodies import *; type('X', (Decorated,), {}, frozen=True)
        from class_bodies import *; type('X', (Decorated,), {}, kw_only=True)
        """,
        on="none",
        message=False,
    ),
    *cases(
        "update",
        """
        from class_bodies import *; d = nested(n=nested()); d.update({'n': None}, inplace=True); d.n, sorted(d.keys())
        from class_bodies import *; d = nested(n=nested()); d.update(n=None, inplace=True); d.n, sorted(d.keys())
        from class_bodies import *; d = nested(n=nested()); d.update({'n': None}); d.n, sorted(d.keys())
        from class_bodies import *; d = nested(n=nested()).lock_(); d.update({'n': None}, inplace=True)
        from class_bodies import *; d = nested(y=T([2])); d.update({'y': None}, inplace=True)
        from class_bodies import *; d = nested(s='a'); d.update({'s': None}, inplace=True); d.s
        from class_bodies import *; d = nested(); d.update({'n': None, 'y': None}, inplace=True); d.n, d.y
        from class_bodies import *; d = TensorDict(d=nested(n=nested())); \
d.update({'d': {'n': None}}, inplace=True); d['d'].n
        """,
        on="none",
        message=False,
    ),
    *cases(
        "load_state_dict",
        """
        from class_bodies import *; d = nested(n=nested()); d.load_state_dict(nested().state_dict(), assign=True); d.n
        from class_bodies import *; d = nested(y=T([2])); d.load_state_dict(nested().state_dict())
        from class_bodies import *; d = nested(s='a'); d.load_state_dict(nested().state_dict(flatten=True)); d.s
        from class_bodies import *; d = nested(); d.load_state_dict(nested(n=nested()).state_dict(flatten=True))
        from class_bodies import *; d = nested(); \
d.load_state_dict(nested(n=nested()).state_dict(flatten=True), strict=False); d.n
        """,
        on="none",
        message=False,
    ),
    *on_classes(
        "InitVar",
        "TakesVariable IgnoresVariable NeedsVariable PrefersItsDefault OnlyDeclares",
        """
        C(T([3], start=1)).x
        C(T([3], start=1), factor=3.0).x
        C(T([3], start=1), 3.0).x
        C(T([3], start=1), batch_size=[3])[0].x
        C(T([3], start=1), factor=3.0, batch_size=[3])[0].x
        C(T([3], start=1), factor=3.0).clone().x
        C.from_tensordict(TensorDict(x=T([3], start=1))).x
        C(T([3]), factor=3.0).factor
        sorted(C(T([3])).keys())
        [field.name for field in dataclasses.fields(C)]
        """,
    ),
]

CASES = differing(
    CASES,
    "ChecksFrozen(T([3]), late=3).late",
    reason="a field of numbers keeps them without batch dims, too",
    ours="result == 3 and type(result) is int",
)
