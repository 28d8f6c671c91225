"""Calling a function on every leaf: apply, apply_, named_apply and the private forms."""

from frame import EVERY, SOME, cases

CASES = [
    *cases(
        "apply",
        """
        td.apply(lambda x: x + 1)
        td.apply(lambda x: x)
        td.apply(lambda x: x)['a'] is td['a']
        td.apply(lambda x: None)
        td.apply(lambda x: None, filter_empty=False)
        td.apply(lambda x: None, filter_empty=True)
        td.apply(lambda x: x, filter_empty=True)
        td.apply(lambda x: x.sum(), batch_size=[])
        td.apply(lambda x: x, call_on_nested=True)
        td.apply(lambda x: x.float(), is_leaf=lambda cls: issubclass(cls, Tensor))
        td.apply(lambda x, y: x + y, td)
        td.apply(lambda x: x + x, inplace=True)
        td.apply(lambda x: x, device='cpu')
        td.apply(lambda x: x, device=None)
        """,
        on=EVERY + " empty_nested nested_subclass half_named mixed",
    ),
    *cases(
        "apply",
        """
        td.apply(lambda x: x[0], batch_size=[3])
        td.apply(lambda x: x.unsqueeze(0), batch_size=[1, 2, 3])
        td.apply(lambda x: x.unsqueeze(0), batch_size=[1, 2, 3], names=['p', 'q', 'r'])
        td.apply(lambda x: x, names=['p', 'q'])
        td.apply(lambda x: x, names=None)
        td.apply(lambda x: x, batch_size=[2])
        td.apply(lambda x: x, batch_size=[5])
        td.apply(lambda x: x, batch_size=2)
        td.apply(lambda x: x[:, 0])
        td.apply(lambda x: 1)
        td.apply(lambda x: 1, batch_size=[])
        td.apply(lambda x: {'u': x})
        td.apply(lambda x: x.numpy())
        td.apply(lambda x: 1 / 0)
        td.apply(None)
        td.apply()
        td.apply(lambda x, y: x)
        td.apply(lambda x: x, td)
        td.apply(lambda x: x, device='meta')
        td.apply(lambda x: x, propagate_lock=True)
        td.apply(lambda x: x, propagate_lock=True, batch_size=[])
        td.apply(lambda x: x.double(), inplace=True)
        td.apply(lambda x: None, inplace=True)
        td.apply(lambda x: x + x, inplace=True, batch_size=[])
        x = td['a']; td.apply(lambda x: x + x, inplace=True)['a'] is x
        td.apply(lambda x: x, call_on_nested=True, filter_empty=True)
        """,
        on=SOME + " deep cpu",
    ),
    *cases(
        "apply",
        """
        td.apply(lambda x, y: x + y, td.select('a'))
        td.apply(lambda x, y: x if y is None else x + y, td.select('a'), default=None)
        td.apply(lambda x, y: x + y, td.select('a'), default=5)
        td.apply(lambda x, y: x + y, td.exclude('a'), default=T([]))
        td.select('a').apply(lambda x, y: x + y, td)
        td.apply(lambda x, y, z: x + y - z, td, td)
        td.apply(lambda x, y: y, TensorDict({'a': 1, 'n': 2}, []))
        td.apply(lambda x, y: x, {'a': 1})
        td.apply(lambda x, y: x, 1)
        """,
        on="nested deep locked named sub",
    ),
    *cases(
        "apply",
        """
        o = td.clone(); td.apply(lambda x: x + 1, out=o) is o
        o = td.clone(); td.apply(lambda x: x + 1, out=o)
        o = td.clone(); x = o['a']; td.apply(lambda x: x + 1, out=o)['a'] is x
        o = td.clone().lock_(); td.apply(lambda x: x + 1, out=o)
        o = td.empty(); td.apply(lambda x: x + 1, out=o)
        o = td.empty(); td.apply(lambda x: None, out=o)
        o = TensorDict({}, []); td.apply(lambda x: x + 1, out=o)
        o = TensorDict({'q': T([2])}, [2]); td.apply(lambda x: x + 1, out=o)
        o = TensorDict({}, [5]); td.apply(lambda x: x + 1, out=o)
        o = td.clone(); td.apply(lambda x: x[0], out=o, batch_size=[3])
        o = td.clone(); td.apply(lambda x: x, out=o, device='meta')
        o = td.clone(); td.apply(lambda x: x, out=o, call_on_nested=True)
        o = td.clone(); td.apply(lambda x: x + 1, out=o, inplace=True) is o
        """,
        on="flat nested deep named",
    ),
    *cases("apply", "td.apply(lambda x: x, foo=1)", on="flat nested", warned=True),
    *cases(
        "apply",
        """
        seen=[]; td.apply(lambda *a: (seen.append(a[:-1]), a[-1])[1], named=True); seen
        seen=[]; td.apply(lambda *a: (seen.append(a[:-1]), a[-1])[1], named=True, nested_keys=True); seen
        seen=[]; td.apply(lambda *a: (seen.append(a[:-1]), a[-1])[1], named=True, nested_keys=True,
            prefix=('p', 'q')); seen
        seen=[]; td.apply(lambda *a: seen.append(len(a)), nested_keys=True); seen
        td.apply(lambda k, x, y: x + y, td, named=True)
        td.apply(lambda k, x: x if k == 'a' else None, named=True, filter_empty=True)
        td.apply_(lambda k, x: x + len(k), named=True)
        td.apply(lambda k, x: x, named=True, call_on_nested=True)
        td.apply(lambda k, x, y: k if y is None else y + 1, td.select('a'), named=True, default=None, filter_empty=True)
        """,
        on=SOME,
    ),
    *cases(
        "apply_",
        """
        td.apply_(lambda x: x + x)
        td.apply_(lambda x: x + x) is td
        td.apply_(lambda x, y: x + y, td)
        td.apply_(lambda x: None)
        td.apply_(lambda x: 1 / 0)
        td.apply_()
        """,
    ),
    *cases(
        "named_apply",
        """
        td.named_apply(lambda k, x: x + len(k))
        td.named_apply(lambda k, x: x + len(k), nested_keys=True)
        td.named_apply(lambda k, x: None if k == 'a' else x)
        td.named_apply(lambda k, x: x if k == 'a' else None)
        td.named_apply(lambda k, x: x if k == 'a' else None, filter_empty=True)
        td.named_apply(lambda k, x: x if k == 'a' else None, filter_empty=False)
        td.named_apply(lambda k, x, y: x - y, td, nested_keys=True)
        ks = []; td.named_apply(lambda k, x: ks.append(k)); ks
        ks = []; td.named_apply(lambda k, x: ks.append(k), nested_keys=True); ks
        ks = []; td.named_apply(lambda k, x: ks.append(k), call_on_nested=True); ks
        td.named_apply(lambda k, x: x + x, inplace=True)
        """,
        on=EVERY + " empty_nested",
    ),
    *cases(
        "_fast_apply",
        """
        td._fast_apply(lambda x: x + 1)
        td._fast_apply(lambda x: None)
        td._fast_apply(lambda x: None, filter_empty=None)
        td._fast_apply(lambda x: x[0], checked=False)
        td._fast_apply(lambda x: x, batch_size=[])
        td._fast_apply(lambda x: x, propagate_lock=True)
        td._fast_apply(lambda k, x: x, named=True)
        td._fast_apply(lambda x: x, call_on_nested=True)
        td._fast_apply(lambda x, y: x if y is None else y, td, default=None)
        td._fast_apply(lambda x: x + x, inplace=True)
        td._fast_apply(lambda x: x, num_threads=2)
        """,
        on=SOME + " deep empty_nested",
    ),
    *cases(
        "_fast_apply",
        """
        td._fast_apply(lambda x: x[0])['a'].shape
        td._fast_apply(lambda x: x, names=['p', 'q'])
        """,
        on="flat nested deep locked named",
    ),
    *cases(
        "_apply_nest",
        """
        td._apply_nest(lambda x: x + 1)
        td._apply_nest(lambda x: x + 1, checked=True)
        td._apply_nest(lambda x: None)
        ks = []; td._apply_nest(lambda k, x: ks.append(k), named=True, nested_keys=True, prefix=('p',)); ks
        """,
        on=SOME,
    ),
    *cases("clear_refs_for_compile_", "td.clear_refs_for_compile_() is td", on=SOME),
]
