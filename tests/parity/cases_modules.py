"""Parameters of modules in and out, TensorDictParams, and gradients of modules."""

from frame import cases, lines

LINEAR = "torch.manual_seed(0); m = nn.Linear(3, 2); "
DEEP = (
    "torch.manual_seed(0); "
    "m = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.BatchNorm1d(2), nn.ReLU())); "
)
PARAMS = "from tensordict.nn import TensorDictParams as P; "
KINDS = "[(k, type(v).__name__, v.requires_grad) for k, v in p.items(True, True)]"


def module_cases(method: str, programs: str, prefix: str) -> list:
    """Cases that need no fixture, each program after a prefix that makes a module."""
    return [
        case
        for line in lines(programs)
        for case in cases(method, prefix + line, on="none")
    ]


CASES = [
    *module_cases(
        "from_module",
        f"""
        from_module(m)
        p = from_module(m); {KINDS}
        from_module(m).is_locked
        from_module(m, lock=False).is_locked
        TensorDict.from_module(m)
        Sub.from_module(m)
        p = from_module(m, use_state_dict=True); {KINDS}
        from_module(m, use_state_dict=True)
        type(from_module(m, as_module=True)).__name__
        from_module(m, as_module=True).is_locked
        from_module(m, filter_empty=False)
        all(x is y for x, y in zip(from_module(m).values(True, True), [*m.parameters()]))
        """,
        DEEP,
    ),
    *module_cases(
        "from_module",
        """
        m.bias = None; from_module(m)
        m.register_buffer('q', None); m.register_buffer('z', torch.zeros(2)); from_module(m)
        m.register_buffer('z', torch.zeros(2), persistent=False); from_module(m, use_state_dict=True)
        s = nn.Sequential(m, m); p = from_module(s); p['0', 'weight'] is p['1', 'weight']
        TensorDict.from_module(3)
        """,
        LINEAR,
    ),
    *module_cases(
        "from_modules",
        f"""
        TensorDict.from_modules(m, nn.Linear(3, 2))
        p = TensorDict.from_modules(m, nn.Linear(3, 2)); {KINDS}
        TensorDict.from_modules(m, nn.Linear(3, 2), lock=False).is_locked
        TensorDict.from_modules(m, nn.Linear(3, 2), use_state_dict=True)
        TensorDict.from_modules(m, nn.Linear(3, 5))
        TensorDict.from_modules(m)
        TensorDict.from_modules()
        from_modules(m, m, expand_identical=True)['weight'].stride()
        type(from_modules(m, m, as_module=True)).__name__
        """,
        LINEAR,
    ),
    *module_cases(
        "to_module",
        """
        p = from_module(m).data.clone().zero_(); w = m.weight; x = p.to_module(m);
            (x['weight'] is w, m.weight is w, type(m.weight).__name__, m.weight)
        p = from_module(m).data.clone(); p.to_module(m, return_swap=False)
        p = from_module(m).clone(); p.to_module(m); m.weight is p['weight']
        p = TensorDict({'weight': T([2, 3])}); x = p.to_module(m); (list(x.keys()), m.weight)
        p = TensorDict({'weight': T([2, 3]), 'zz': T([2])}); p.to_module(m)
        p = TensorDict({'nope': {'weight': T([2, 3])}}); p.to_module(m)
        p = TensorDict({'weight': T([2, 3]).requires_grad_()}); p.to_module(m); m.weight is p['weight']
        p = TensorDict({'weight': T([2, 3])}); p.to_module(m, preserve_module_state=False); m.weight is p['weight']
        p = TensorDict({'weight': T([2, 3])}); w = m.weight; p.to_module(m, inplace=True); (m.weight is w, w)
        p = from_module(m).data.clone().zero_(); w = m.weight; p.to_module(m, use_state_dict=True);
            (m.weight, type(m.weight).__name__)
        p = from_module(m).data.clone(); p.to_module(m, use_state_dict=True, inplace=True)
        p = from_module(m).data.clone(); p.to_module(m, memo={})
        p = from_module(m).data.clone(); s = TensorDict({}); (p.to_module(m, swap_dest=s) is s, list(s.keys()))
        p = from_module(m).data.clone(); p.to_module(3)
        type(Sub({'weight': T([2, 3])}).to_module(m)).__name__
        m.requires_grad_(False); p = TensorDict({'weight': T([2, 3])}); p.to_module(m); m.weight.requires_grad
        m.foo = T([2]); p = TensorDict({'foo': T([2], start=3)}); x = p.to_module(m); (x['foo'], m.foo)
        l = nn.Linear(1, 1, bias=False); w = l.weight; s = nn.Sequential(l, l);
            p = TensorDict({('0', 'weight'): T([1, 1]), ('1', 'weight'): T([1, 1], start=5)});
            x = p.to_module(s); (l.weight, x['0', 'weight'] is w, x['1', 'weight'] is w)
        """,
        LINEAR,
    ),
    *module_cases(
        "to_module",
        """
        exec('with p.to_module(m): y = m(T([1, 3]))'); (y, m.weight is w)
        exec('with p.to_module(m) as q: m.weight = nn.Parameter(T([2, 3], start=7))'); (p, m.weight is w)
        exec('with p.lock_().to_module(m) as q: m.weight = nn.Parameter(T([2, 3], start=7))'); (p, m.weight is w)
        exec('with p.to_module(m) as q: m.weight.data.add_(1)'); (p, m.weight is w)
        exec('with p.to_module(m) as q: m.bias = nn.Parameter(T([2]))'); (p, m.bias)
        exec('try:\\n with p.to_module(m): 1 / 0\\nexcept ZeroDivisionError: pass'); m.weight is w
        exec('with p.clone().to_module(m): pass'); m.weight is w
        """,
        LINEAR + "p = TensorDict({'weight': T([2, 3])}); w = m.weight; ",
    ),
    *module_cases(
        "TensorDictParams",
        """
        p = P(TensorDict({'a': T([2]), 'n': {'b': T([1])}, 'i': T([2], 'int64')}));
            ([k for k, _ in p.named_parameters()], [k for k, _ in p.named_buffers()],
            len(list(p.modules())), list(p.state_dict()))
        p = P(a=T([2])); p
        p = P({'a': T([2])}); p
        P()
        t = TensorDict({'a': T([2])}); p = P(t); (t['a'] is p['a'], type(t['a']).__name__)
        t = TensorDict({'a': T([2])}); p = P(t, no_convert=True);
            (type(t['a']).__name__, [k for k, _ in p.named_buffers()])
        p = P(a=T([2])); p['z'] = T([2]); (type(p['z']).__name__, [k for k, _ in p.named_parameters()])
        p = P(a=T([2])); p.lock_(); p['z'] = T([2])
        t = TensorDict({'a': T([2])}); p = P(t, lock=True); (t.is_locked, p.is_locked)
        p = P(a=T([2])); (type(p.clone()).__name__, type(p.clone(False)).__name__, p.clone(False)['a'] is p['a'])
        p = P(a=T([2])); q = p.apply(lambda x: x + 1); (type(q).__name__, q)
        p = P(a=T([2])); (type(p.data).__name__, p.data)
        p = P(a=T([2])); p.grad
        p = P(a=T([2])); p['a'].sum().backward(); p.grad
        p = P(a=T([2])); (type(p.to(torch.float64)).__name__, type(p.double()).__name__)
        p = P(TensorDict({'a': T([2])}, [2])); (type(p[0]).__name__, type(p.unsqueeze(0)).__name__,
            type(p + 1).__name__)
        p = P(a=T([2])); p.requires_grad_(False); p['a'].requires_grad
        p = P(a=T([2])); (p.train() is p, p.eval().training)
        p = P(a=T([2]), n={'b': T([1])}); m = nn.Module(); m.p = p;
            ([k for k, _ in m.named_parameters()], list(m.state_dict()))
        p = P(a=T([2]), n={'b': T([1])}); m = nn.Module(); m.p = p; m.double();
            [(k, v.dtype) for k, v in p.named_parameters()]
        p = P(a=T([2]), n={'b': T([1])}); m = nn.Module(); m.p = p;
            s = {k: v + 1 for k, v in m.state_dict().items()}; m.load_state_dict(s); p.data
        p = P(a=T([2])); (hash(p) == hash(p), (p == p)['a'])
        p = P(a=T([2])); p.foo = 3; (p.foo, p.a is p['a'])
        p = P(a=T([2])); p.nope
        p = P(a=T([2]), n={'b': T([1])}); q = pickle.loads(pickle.dumps(p));
            (type(q).__name__, q.data, [k for k, _ in q.named_parameters()])
        p = P(a=T([2]), n={'b': T([1])}); q = copy.deepcopy(p); (type(q).__name__, q.data, q['a'] is p['a'])
        w = nn.Parameter(T([2])); p = P(TensorDict({'a': w, 'b': w})); (p['a'] is w, p['b'] is w)
        p = P(a=T([2])); p.register_get_post_hook(lambda self, x: x.data);
            (p['a'].requires_grad, p.get('a').requires_grad)
        p = P(a=T([2])); del p['a']; list(p.parameters())
        p = P(a=T([2])); p.update({'a': T([2], start=3)}); (p.data, type(p['a']).__name__)
        p = P(TensorDict({'a': T([2])}, [2])); torch.stack([p, p])
        p = P(a=T([2])); o = torch.optim.SGD(p.parameters(), lr=1.0); p['a'].sum().backward(); o.step(); p.data
        p = P(a=T([2])); m = nn.Module(); m.p = p; q = from_module(m); (q['p'] is p, q.is_locked, p.is_locked)
        exec('with set_printoptions(compact=True): r = repr(P(a=T([2]), n={"b": T([1])}))', globals() | {'P': P}); r
        """,
        PARAMS,
    ),
    *cases(
        "TensorDictParams",
        PARAMS
        + "p = P(a=T([2])); m = nn.Module(); m.p = p; m.load_state_dict({'p.q': T([2])})",
        on="none",
        reason="the release stops at the first module; torch names all keys of all modules",
        ours="'Missing key(s)' in str(error) and 'p.a' in str(error)",
    ),
]

HELPERS = (DEEP, PARAMS, LINEAR)
"""The beginnings of programs: answers go by what follows them."""
