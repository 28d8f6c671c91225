"""Parts of collections: what is written by key, and parts that lie outside."""

from __future__ import annotations

from frame import cases

OUTSIDE = (
    "o = TensorDict({'a': T([3]), 'n': {'b': T([3])}}, [3]); "
    "part = o._get_sub_tensordict(torch.tensor([99])); "
)

CASES = [
    *cases(
        "update",
        """
        td.update({'n': T([2])})
        td.update({'n': {'m': T([2])}})
        td.update({('n', 'm'): T([2])})
        td.update({'a': T([2, 2], start=4), 'n': T([2])})
        td.update(TensorDict({'n': T([2])}, [2]))
        td.update({'n': T([2])}, is_leaf=lambda cls: True)
        td.update({'n': T([2])}, keys_to_update=['a'])
        td.update({'n': {}})
        td.update({'n': {'m': {}}})
        td.update({'n': {'b': T([2], start=4)}})
    """,
        on="picked",
    ),
    *cases("update", "td.update({'n': 'text'})", on="picked", message=False),
    *cases(
        "update_",
        """
        td.update_({('n', 'b'): T([2], start=4), ('n', 'z'): T([2])})
        td.update_({('n', 'b'): T([2], start=4)})
        td.update_({'a': T([2, 3]), 'z': T([2])})
        td.update_({'z': T([2]), 'a': T([2, 3])})
        td.update_({'n': {'b': T([2, 2]), 'z': T([2])}})
        td.update_({'n': {'z': T([2]), 'b': T([2, 2])}})
        td.update_({'a': T([2, 2], start=4), 'z': T([2])}, keys_to_update=['a'])
        td.update_({'a': T([2, 2], start=4)}, keys_to_update=['z'])
        td.update_({'n': {'b': T([2], start=4), 'z': T([2])}}, keys_to_update=[('n', 'b')])
        td.update_({'z': {}})
        td.update_({'n': {'z': {}}})
        td.update_({'n': {'z': {'y': {}}}})
        td.copy_(TensorDict({'a': T([2, 2], start=4), 'z': {}}, [2]))
    """,
        on="picked",
    ),
    *cases(
        "_get_str",
        """
        type(td._get_str('n', None)).__name__
        type(td._get_str('a', None)).__name__
        td._get_str('z', None)
        td._get_str('n', None).set_('b', T([2], start=4)) is None
    """,
        on="picked sub",
    ),
    *cases(
        "_get_sub_tensordict",
        f"{OUTSIDE} part.update_({{'a': T([1, 3]), 'z': T([1])}})",
        on="none",
        message=False,
    ),
    # An index tensor that points outside is noticed where an entry is read.
    *cases(
        "_get_sub_tensordict",
        f"""
        {OUTSIDE} part.update_({{'z': T([1]), 'a': T([1, 3])}})
        {OUTSIDE} part.update_({{'n': {{'z': T([1])}}}})
        {OUTSIDE} part.sorted_keys
        {OUTSIDE} part.empty()
        {OUTSIDE} part.batch_size
        {OUTSIDE} list(part.keys(True, True))
        {OUTSIDE} part.del_('a') is part, list(o.keys())
        {OUTSIDE} part.clear() is part, list(o.keys())
        {OUTSIDE} o.lock_(); part.clear()
        {OUTSIDE} o.del_('n'); part.empty(recurse=True)
    """,
        on="none",
    ),
    # A value that is no tensor has the lock of the whole where all of it is read.
    *cases(
        "_get_sub_tensordict",
        """
        o = TensorDict(s='hi', batch_size=[3]).lock_();
            [o._get_sub_tensordict(at).get('s').is_locked for at in (..., slice(None), slice(1, 3),
            slice(0, 3), None)]
        """,
        on="none",
    ),
    # An entry without batch dims is whole where a nested collection is read.
    *cases(
        "_get_sub_tensordict",
        """
        td = TensorDict({'s': U(T([5])), 'n': {'s': U(T([5]))}}, [2, 3]);
            v = td._get_sub_tensordict(()); v.get('s').shape, v.get('s').batch_size
        td = TensorDict({'n': {'s': U(T([5]))}}, [2, 3]);
            v = td._get_sub_tensordict(0)[torch.tensor(True)];
            v.get('n').get('s').data.shape, v['n', 's'].batch_size
        td = TensorDict({'n': {'s': U(T([5]))}}, [2, 3]); v = td._get_sub_tensordict(slice(1))[0];
            v.get('n').get('s').data.shape
        """,
        on="none",
    ),
    # A new entry of the part is one of the whole, of the same class.
    *cases(
        "_get_sub_tensordict",
        """
        v = td._get_sub_tensordict(1); v['z'] = Inner(z=T([3]), batch_size=[]); td['z']
        v = td._get_sub_tensordict(1); v['z', 'w'] = Inner(z=T([3]), batch_size=[]); td['z', 'w']
        v = td._get_sub_tensordict(1); v.set('z', Inner(z=T([3]), batch_size=[])); v.get('z')
        """,
        on="flat nested",
    ),
]

HELPERS = (OUTSIDE,)
"""The beginnings of programs: answers go by what follows them."""
