"""Locks, and writing back at the end of a with block."""

from frame import EVERY, cases

BLOCKS = """
with td.view(-1) as v: v['z'] = T([v.batch_size[0]])
with td.view(3, 2) as v: v['a'] = T([3, 2], start=5)
with td.view(3, 2) as v: v['a'] = T([3, 2, 9])
with td.view(3, 2) as v: v['n', 'z'] = T([3, 2])
with td.view(3, 2) as v: v.del_('a')
with td.view(3, 2) as v: v['z'] = {'y': T([3, 2])}
with td.permute(1, 0) as v: v['z'] = T([3, 2])
with td.permute(dims=(-1, 0)) as v: v['z'] = T([3, 2])
with td.transpose(0, 1) as v: v['z'] = T([3, 2])
with td.swapaxes(0, -1) as v: v['z'] = T([3, 2])
with td.movedim(0, 1) as v: v['z'] = T([3, 2])
with td.unsqueeze(0) as v: v['z'] = T([1, 2, 3])
with td.unsqueeze(-1) as v: v['z'] = T([2, 3, 1])
with td.unsqueeze(dim=1) as v: v['z'] = T([2, 1, 3])
with td.squeeze(0) as v: v['z'] = T([2, 3])
with td.flatten(0, 1) as v: v['z'] = T([6])
with td.flatten() as v: v['z'] = T([6])
with td.unflatten(1, (3, 1)) as v: v['z'] = T([2, 3, 1])
with td.flatten_keys() as v: v['z'] = T([2, 3])
with td.flatten_keys('_') as v: v['n_z'] = T([2, 3])
with td.flatten_keys() as v: v['a'] = T([2, 3], start=5)
with td.flatten_keys(inplace=True) as v: v['n.z'] = T([2, 3])
with td.unflatten_keys() as v: v['n', 'z'] = T([2, 3])
with td.lock_() as v: pass
with td.lock_() as v: v['z'] = T([2, 3])
with td.unlock_() as v: v['z'] = T([2, 3])
with td.to('cpu') as v: v['z'] = T([2, 3])
with td.to(torch.float64) as v: v['z'] = T([2, 3])
with td.roll(1, 0) as v: v['z'] = T([2, 3])
with td.flip(0) as v: v['z'] = T([2, 3])
with td.reshape(6) as v: v['z'] = T([6])
with td.clone() as v: v['z'] = T([2, 3])
with td.select('a') as v: v['z'] = T([2, 3])
with td as v: v['z'] = T([2, 3])
"""

CASES = [
    *cases(
        "lock_",
        """
        td.lock_()
        td.lock_() is td
        td.lock_().lock_()
        td.lock_()['z'] = T([2, 3])
        td.lock_(); td['a'].add_(1)
        td.lock_(); td.unlock_()
        td.lock_().clone()
        td.lock_().clone(False)
        td.lock_()[0]
        td.lock_().view(-1)
        td.lock_().select('a')
        td.lock_().flatten_keys()
        """,
    ),
    *cases(
        "lock_",
        """
        td['n'].lock_(); td['n', 'z'] = T([2, 3])
        td['n'].lock_(); td['z'] = T([2, 3])
        td['n'].lock_(); td.unlock_()
        td['n'].lock_(); td.lock_(); td['n'].unlock_()
        td['n'].lock_(); td.lock_(); td.unlock_()
        td.lock_(); td['n'].unlock_()
        td.lock_(); td['n'].is_locked = False
        n = td['n']; td.lock_(); td = None; n.unlock_()
        n = td['n']; x = TensorDict({'n': n}, [2, 3]); td.lock_(); x.unlock_()
        n = td['n']; x = TensorDict({'n': n}, [2, 3]); td.lock_(); x.is_locked, x['n'].is_locked
        x = TensorDict({'q': T([2, 3])}, [2, 3]).lock_(); td['z'] = x; td['z'] is x
        x = TensorDict({'q': T([2, 3])}, [2, 3]).lock_(); td['z'] = x; td.lock_(); x.unlock_()
        td['z'] = td['n']; td.lock_(); td.unlock_()
        """,
        on="nested deep subclass",
        message=False,
    ),
    *cases(
        "lock_",
        "n = td['n']; x = TensorDict({'n': n}, [2, 3]); td.lock_(); x.lock_(); td.unlock_()",
        on="nested",
        reason="the release unlocks the outer container before it fails",
        ours="isinstance(error, RuntimeError) and td.is_locked and td['n'].is_locked",
    ),
    *cases(
        "unlock_",
        "td.unlock_()\ntd.unlock_() is td\ntd.unlock_()['z'] = T([2, 3])",
        on="flat nested locked sub",
    ),
    *cases(
        "is_locked",
        """
        td.is_locked
        td.is_locked = True
        td.is_locked = False
        """,
        on=EVERY,
    ),
    *cases("__enter__", BLOCKS, on="nested named", message=False),
    *cases(
        "__enter__",
        """
        with td.view(-1) as v: v['a'] = T([6], start=5)
        with td.view(-1) as v: v['a'].add_(1)
        with td.flatten_keys() as v: v['a'] = T([2, 3], start=5)
        with td.flatten_keys() as v: v['z'] = T([2, 3])
        with td.flatten_keys() as v: v['a'] = T([2, 3, 5])
        with td.unlock_() as v: v['z'] = T([2, 3])
        with td.unlock_() as v: v['z'] = {'q': T([2, 3])}
        with td.lock_() as v: pass
        """,
        on="locked",
        message=False,
    ),
    *cases(
        "__enter__",
        """
        with td.squeeze() as v: v['z'] = T([3])
        with td.squeeze(0) as v: v['z'] = T([3])
        with td.squeeze(-2) as v: v['z'] = T([3])
        with td.squeeze(dim=0) as v: v['z'] = T([3])
        """,
        on="single",
    ),
    *cases(
        "__enter__",
        "with td.unflatten_keys() as v: v['n', 'z'] = T([2, 3])",
        on="dotted",
    ),
    *cases(
        "__exit__",
        """
        with contextlib.suppress(ZeroDivisionError), td.view(-1) as v: v['z'] = T([6]); 1 / 0
        with contextlib.suppress(ZeroDivisionError), td.lock_(): 1 / 0
        with contextlib.suppress(ZeroDivisionError), td.unlock_(): 1 / 0
        with contextlib.suppress(ZeroDivisionError), td.flatten_keys() as v: v['z'] = T([2, 3]); 1 / 0
        """,
        on="nested locked named",
        message=False,
    ),
    *cases(
        "__exit__",
        """
        x = td['n']; v = td.view(-1).__enter__(); v['z'] = T([6]); v.__exit__(None, None, None); td['n'] is x
        v = td.view(-1).__enter__(); w = v.view(3, 2).__enter__(); w['z'] = T([3, 2]);
            w.__exit__(None, None, None); v.__exit__(None, None, None); td
        """,
        on="nested",
    ),
]
