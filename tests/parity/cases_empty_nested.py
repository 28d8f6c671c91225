"""Nested collections that hold nothing: cases that random comparisons found."""

from frame import cases

CASES = [
    *cases(
        "empty nested collections",
        """
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td + 1
        td['e'] = {}; td['n', 'm'] = {'m': {}}; 1 - td
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td * td
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td / td.exclude(('n', 'm'))
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td + torch.tensor(2)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td + T([2, 3])
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td + {}
        td['e'] = {}; td['n', 'm'] = {'m': {}}; -td
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.clamp(min=0)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.clamp(max=td)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.clamp(0, 1)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.add(td.exclude('e'), default=torch.tensor(1.0))
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.add(td.exclude('e'), default='other')
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.mul(td.exclude('a'), default='intersection')
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.add(1, alpha=2)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.bool() & td.bool()
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.mod(2)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.lerp(td, 0.5)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.addcmul(td, td)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.maximum(td)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; torch.clamp_min(td, 0)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td += 1
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.add_(td)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.max(0)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.min(-1, keepdim=True)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.cummax(0)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.cummin(dim=1)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.max(0, return_indices=False)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.amax(0)
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.select('e', ('n', 'm')) + 1
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.lock_() + td
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td.select('e', ('n', 'm')).max(0)
    """,
        on="nested",
    ),
    *cases(
        "empty nested collections",
        """
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td['s'] = 'text'; td['n', 'm'] = {'s': 'text'}; td + td
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td['l'] = lazy_stack([TensorDict({'a': T([3]),
            'e': {}}, [3]), TensorDict({'e': {}}, [3])]); td + 1
        td['e'] = {}; td['n', 'm'] = {'m': {}}; td['l'] = lazy_stack([TensorDict({'e': {}}, [3]),
            TensorDict({'e': {}}, [3])]); td + 1
        td['e'] = {}; td['n', 'm'] = {'m': {}}; TensorDictParams(TensorDict({'a': T([3]), 'e': {}}, [])) + 1
    """,
        on="nested",
    ),
    *cases("max", "td.max(dim=())\ntd.cummin(())", on="nested", message=False),
]
