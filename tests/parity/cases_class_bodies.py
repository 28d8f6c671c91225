"""What the body of a class declares: frozen classes, and subclasses of decorated ones."""

from frame import cases


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


CASES = [
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
        str(__import__('inspect').signature(C))
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
]
