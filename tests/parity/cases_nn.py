"""Modules of collections, distributions, and the modules that take values of them.

The programs import ``nn_setup``. A word before a method of theirs is the class.
"""

from frame import cases, differing, lines

SETUP = "from nn_setup import *; torch.manual_seed(0); "


def programs(method: str, text: str) -> list:
    """A case for each line, on the fixture of a module."""
    return [
        case for line in lines(text) for case in cases(method, SETUP + line, on="read")
    ]


ACCEPTED = [
    (
        "Delta",
        "x=Delta(T([2,3]), event_shape=(3,)); (x.batch_shape, x.event_shape)",
        "the release has no batch dims where only the event's are given",
        "result == ((2,), (3,))",
    ),
    (
        "OneHotCategorical",
        "OneHotCategorical(logits=T([3])).log_prob(torch.tensor([True, False, False]))",
        "the release has no log-probability for a vector of bools",
        "abs(result.item() + 7.0190) < 1e-3",
    ),
    (
        "ProbabilisticTensorDictModule",
        "normal(out_keys=['x', 'y'])(loc_scale())",
        "the release's message is that of zip",
        "isinstance(error, ValueError) and \"['x', 'y']\" in str(error)",
    ),
    (
        "ProbabilisticTensorDictSequential",
        "PS(M(two, ['q'], ['loc', 'scale']), normal(), partial_tolerant=True)(td)",
        "the release calls modules without their inputs though it is to tolerate that",
        "result is td and list(td.keys()) == ['a', 'b', 'n']",
    ),
    (
        "ProbabilisticTensorDictModule",
        "q=PS(PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal())); q.get_dist(TensorDict(a=T([8])))",  # noqa: E501
        "the release does not call the modules of a sequence that comes last",
        "type(result).__name__ == 'Normal'",
    ),
    (
        "TensorDictSequential",
        "S({'x': M(one, ['a'], ['z']), 'y': M(one, ['z'], ['w'])})[0].in_keys",
        "the release finds no module by its position where modules have names",
        "result == ['a']",
    ),
    (
        "TensorDictSequential",
        "S(M(one, ['a'], ['z']), inplace='foo')",
        "the release takes any value of inplace",
        "isinstance(error, ValueError)",
    ),
    (
        "TensorDictSequential",
        "S(M(one, ['a'], ['z']))(T([3]), T([3]))",
        "the release takes a second tensor for a collection, and fails in its update",
        "isinstance(error, ValueError) and \"in_keys=['a']\" in str(error)",
    ),
    (
        "TensorDictModule",
        "M(add, {'x': 'a', 'y': 'b'}, ['z'])(x=T([3]), y=T([3]))",
        "the release names missing inputs only where they are positional",
        "isinstance(error, KeyError) and \"'a', 'b'\" in str(error)",
    ),
]

CASES = [
    *[
        case
        for method, program, reason, ours in ACCEPTED
        for case in cases(method, SETUP + program, on="read", reason=reason, ours=ours)
    ],
    *programs(
        "TensorDictModule",
        """
        M(one, ['a'], ['z'])
        m=M(one, 'a', 'z'); (m.in_keys, m.out_keys, m(td) is td, D(td))
        m=M(add, ['a',('n','c')], [('n','z')]); (m.in_keys, m.out_keys, D(m(td)))
        m=M(two, ('a',), ('x',('y',))); (m.in_keys, m.out_keys)
        m=M(two, ['a'], ['x','_']); (m.in_keys, m.out_keys, D(m(td)))
        m=M(two, ['a'], ['_x','y']); (m.in_keys, m.out_keys, D(m(td)))
        m=M(two, ['a'], ['_','_']); (m.in_keys, m.out_keys, D(m(td)))
        M(two, ['a'], ['x'])(td)
        M(one, ['a'], ['x','y'])(td)
        M(two, ['a'], ['x','y','z'])(td)
        M(one, ['q'], ['x'])(td)
        M(nn.Linear(3,2), ['q'], ['x'])(td)
        M(nn.Linear(4,2), ['a'], ['x'])(td)
        M(one, ['q'], ['x'], strict=True)(td)
        M(add, ['q','a'], ['x'], strict=True)(td)
        M(one, [('n','q')], ['x'], strict=True)(td)
        m=M(add, {'x':'a','y':'b'}, ['z'], out_to_in_map=False); (m.in_keys, D(m(td)))
        m=M(add, {'x':'a','y':'b'}, ['z']); (m.in_keys, D(m(td)))
        m=M(add, {'a':'x','b':'y'}, ['z'], out_to_in_map=True); (m.in_keys, D(m(td)))
        m=M(add, {'x':'a','y':('n','c')}, ['z'], out_to_in_map=False); (m.in_keys, D(m(td)))
        m=M(add, {'a':'x',('n','c'):'y'}, ['z'], out_to_in_map=True); (m.in_keys, D(m(td)))
        m=M(add, ['a','b'], ['z'], out_to_in_map=True)
        m=M(add, {'x':'a','y':'b'}, ['z'], out_to_in_map=None)
        m=M(add, {'_x':'a'}, ['z'], out_to_in_map=True)(td)
        m=M(add, {'x':'a','_y':'b'}, ['z'], out_to_in_map=False)(td)
        m=M(one, ['a'], ['z'], inplace=False); r=m(td); (r is td, D(r), D(td))
        m=M(one, ['a'], ['z'], inplace='empty'); r=m(td); (r is td, type(r).__name__, D(r), D(td))
        m=M(one, ['a'], ['z'], inplace=None); r=m(td); r is td
        m=M(nn.Linear(3,2), ['a'], ['z'], method='reset_parameters'); m(td)
        M(F:=type('F',(),{'foo':lambda self,x: x})(), ['a'], ['z'], method='nope')
        M(nn.Linear(3,3), ['a'], ['z'], method='nope')(td)
        M(one, ['a'], ['z'], method_kwargs={'k':3})(td)
        M(3, ['a'], ['z'])
        M('x', ['a'], ['z'])
        M(one, 3, ['z'])
        M(one, ['a'], 3)
        M(one, [3], ['z'])
        M(one, ['a'], [3])
        M(one, ['a'], ['z','z'])
        M(two, ['a'], ['z','z'])(td)
        M(add, ['a','a'], ['z'])(td)
        M(one, None, ['z'])
        M(one, [], ['z'])
        M(lambda: T([3]), [], ['z'])(td)
        M(one, ['a'], [])(td)
        M(lambda x: None, ['a'], [])(td)
        M(lambda x: None, ['a'], ['z'])(td)['z']
        M(lambda x: {'x': x, 'y': x+1}, ['a'], ['x','y'])(td)
        M(lambda x: {'x': x, 'y': x+1}, ['a'], ['y'])(td)
        M(lambda x: TensorDict(x=x, batch_size=[3]), ['a'], ['x'])(td)
        M(lambda x: TensorDict(x=x, batch_size=[3]), ['a'], ['y'])(td)['y']
        M(lambda x: [x,x+1], ['a'], ['x', 'y'])(td)['y']
        M(lambda x: (x,), ['a'], ['x'])(td)['x']
        M(lambda x: 3, ['a'], ['x'])(td)['x']
        M(lambda x: 'foo', ['a'], ['x'])(td)['x']
        M(one, 'n', 'z')(td)
        M(lambda n: n.clone(), 'n', 'z')(td)
        M(one, ['a'], ['z'])(a=T([3]))
        M(one, ['a'], ['z'])(T([3]))
        M(two, ['a'], ['y','z'])(T([3]))
        M(two, ['a'], ['y','z'])(a=T([3]))
        M(add, ['a',('n','c')], ['z'])(a=T([3]), n_c=T([3]))
        M(add, ['a',('n','c')], ['z'])(T([3]), n_c=T([3]))
        M(add, ['a',('n','c')], ['z'])(T([3]), T([3]))
        M(add, ['a',('n','c')], ['z'])(T([3]))
        M(add, ['a','b'], ['z'])(T([3]), q=T([3]))
        M(add, ['a','b'], ['z'])(T([3]), T([3]), T([3]))
        M(add, ['a','b'], ['z'])()
        M(one, ['a'], ['z'])(td, T([3]))
        M(one, ['a'], ['z'])(tensordict=td)['z']
        M(one, ['a'], ['z'])(td, tensordict_out=TensorDict(batch_size=[3]))
        o=TensorDict(batch_size=[3]); r=M(one, ['a'], ['z'])(td, tensordict_out=o); (r is o, D(o), D(td))
        o=TensorDict(batch_size=[3]); r=M(one, ['a'], ['z'], inplace=False)(td, tensordict_out=o); (r is o, D(o), D(td))
        M(one, ['a'], ['z'])(td.lock_())
        M(one, ['a'], ['a'])(td.lock_())['a']
        M(one, ['a'], ['a'])(td)['a']
        M(one, ['a'], ['z'])({'a': T([3])})
        M(one, ['a'], ['z'])(a=3)
        M(one, ['a'], ['z'])(3)
        r=M(one, ['a'], ['z'], inplace=False)(td); type(r)
        m=M(nn.Linear(3,2), ['a'], ['z']); (m.weight is m.module.weight, m.in_features, list(m.state_dict()), m.device)
        m=M(one, ['a'], ['z']); m.foo
        m=M(nn.Linear(3,2), ['a'], ['z']); m.foo
        m=M(nn.Linear(3,2), ['a'], ['z']); m.is_functional
        m=M(one, ['a'], ['z']); m.device
        """,  # noqa: E501
    ),
    *programs(
        "TensorDictSequential",
        """
        m=M(two, ['a'], ['x','y']); r=m.select_out_keys('y'); (r is m, m.out_keys, m.out_keys_source, D(m(td)))
        m=M(two, ['a'], ['x','y']).select_out_keys('y'); (m(T([3])), m(a=T([3])))
        m=M(two, ['a'], ['x',('n','y')]).select_out_keys(('n','y')); m.reset_out_keys();
            (m.out_keys, m.out_keys_source, m(T([3])))
        m=M(two, ['a'], ['x','y']).select_out_keys('q')
        m=M(two, ['a'], ['x','y']).select_out_keys()
        m=M(two, ['a'], ['x','y']).select_out_keys('x').select_out_keys('y')
        m=M(two, ['a'], ['x','y']).select_out_keys(['x'])
        m=M(two, ['a'], ['x','y']).select_out_keys('x','x'); m.out_keys
        m=M(two, ['a'], ['x','y']).select_out_keys('x'); D(m(TensorDict(a=T([3]), y=T([3]), batch_size=[3])))
        m=M(two, ['a'], ['x','y']).select_out_keys('y','x'); m(T([3]))
        m=M(two, ['a'], ['x','_']).select_out_keys('x'); m.out_keys
        m=M(two, ['a'], ['a','y']).select_out_keys('y'); D(m(td))
        m=M(two, ['a'], ['b','y']).select_out_keys('y'); D(m(td))
        m=M(one, ['a'], ['z']); m.in_keys=['b']; (m.in_keys, D(m(td)))
        m=M(one, ['a'], ['z']); m.in_keys='b'; m.in_keys
        m=M(one, ['a'], ['z']); m.out_keys=['b']; (m.out_keys, D(m(td)))
        m=M(one, ['a'], ['z']); m.out_keys='bc'; m.out_keys
        m=M(one, ['a'], ['z']); m.out_keys=[('b',('c',))]; m.out_keys
        m=M(one, ['a'], ['z']).select_out_keys('z'); m.out_keys=['q']; (m.out_keys, m.out_keys_source, D(m(td)))
        m=M(one, ['a'], ['z']); m.out_keys_source
        m=M(one, ['a'], ['z']); m.out_keys_source=3
        dispatch(source=3)
        dispatch(dest=3)
        dispatch(separator=3)
        M(one, ['a'], [('n', 3)])
        M(one, [('n', 3)], ['z'])
        M(one, ['a'], [()])
        dispatch(source='in_keys', dest='out_keys')
        MB.is_tdmodule_compatible(M(one,['a'],['z'])), MB.is_tdmodule_compatible(nn.Linear(3,2)),
            MB.is_tdmodule_compatible(Var)
        s=S(M(one,['a'],['z']), M(two,['z'],['y','w']));
            (s.in_keys, s.out_keys, D(s(td)), len(s), s[0].out_keys, type(s[:1]).__name__, s)
        s=S([M(one,['a'],['z']), M(two,['z'],['y','w'])]); (s.in_keys, s.out_keys)
        s=S(collections.OrderedDict(foo=M(one,['a'],['z']), bar=M(two,['z'],['y','w'])));
            (s.in_keys, s.out_keys, list(s.state_dict()), s.module, s['foo'], s.foo)
        s=S(dict(foo=M(one,['a'],['z']), bar=M(two,['z'],['y','w']))); s
        s=S(M(one,['a'],['z']), lambda td: td.set('q', td['z'])); (s.in_keys, s.out_keys, D(s(td)), s)
        s=S(M(one,['a'],['z']), nn.Linear(3,2)); s(td)
        s=S(); (s.in_keys, s.out_keys, s(td) is td)
        s=S(3)
        s=S(M(one,['a'],['z'])); s(T([3]))
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); (s(T([3])), s(a=T([3])))
        s=S(M(one,['q'],['z']), M(one,['z'],['w'])); s(td)
        s=S(M(one,['a'],['z']), M(one,['y'],['w']), partial_tolerant=True);
            l=LazyStackedTensorDict(TensorDict(a=T([3])), TensorDict(y=T([4])),
            TensorDict(q=T([1]))); s(l); [D(t) for t in l.tensordicts]
        s=S(M(one,['a'],['z']), M(one,['y'],['w']), partial_tolerant=True, selected_out_keys=['w']);
            l=LazyStackedTensorDict(TensorDict(a=T([3])), TensorDict(y=T([4]))); s(l);
            [D(t) for t in l.tensordicts]
        s=S(M(one,['q'],['z']), M(one,['a'],['w']), partial_tolerant=True); D(s(td))
        s=S(M(one,['q'],['z']), M(one,['z'],['w']), partial_tolerant=True); D(s(td))
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), selected_out_keys=['w']); (s.out_keys, D(s(td)), s.out_keys_source)
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), selected_out_keys='w'); s.out_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), selected_out_keys=['q']); s.out_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])).select_out_keys('w');
            (s.out_keys, D(s(td)), [m.out_keys for m in s.module])
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s.select_out_keys('w'); s.reset_out_keys(); (s.out_keys, D(s(td)))
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), inplace=False); r=s(td); (r is td, D(r), D(td))
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), inplace='empty'); r=s(td); (r is td, D(r), D(td))
        s=S(M(one,['a'],['z'], inplace=False), M(one,['z'],['w'])); r=s(td); (r is td, D(r), D(td))
        s=S(M(one,['a'],['z']), M(one,['z'],['w'], inplace=False)); r=s(td); (r is td, D(r), D(td))
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), inplace=True); r=s(td); (r is td, D(td))
        o=TensorDict(batch_size=[3]); s=S(M(one,['a'],['z']), M(one,['z'],['w']));
            r=s(td, tensordict_out=o); (r is o, D(o), D(td))
        o=TensorDict(batch_size=[3]); s=S(M(one,['a'],['z']), M(one,['z'],['w']),
            selected_out_keys=['w']); r=s(td, tensordict_out=o); (r is o, D(o), D(td))
        o=TensorDict(batch_size=[3]); s=S(M(one,['a'],['z']), M(one,['z'],['w']), inplace=False);
            r=s(td, tensordict_out=o); (r is o, D(o), D(td))
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w']), M(one, ['w'],['v']), M(one, ['b'],['u']));
            t=s.select_subsequence(out_keys=['w']); (t.in_keys, t.out_keys, t[0] is s[0], len(t),
            list(t._modules), list(t.module._modules))
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w']), M(one, ['w'],['v']), M(one, ['b'],['u']));
            t=s.select_subsequence(in_keys=['b']); (t.in_keys, t.out_keys)
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w']), M(one, ['w'],['v']), M(one, ['b'],['u']));
            t=s.select_subsequence(in_keys=['a','b'], out_keys=['w']); (t.in_keys, t.out_keys)
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); t=s.select_subsequence(in_keys=['q'])
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); t=s.select_subsequence(out_keys=['q'])
        s=S(M(one,['a'],['z']), M(two,['z'],['w','v'])); t=s.select_subsequence(out_keys=['v']); (t.in_keys, t.out_keys)
        s=S(M(one,['a'],['z']), S(M(add,['z','b'],['w']), M(one,['w'],['v'])));
            t=s.select_subsequence(out_keys=['w']); (t.in_keys, t.out_keys, t)
        s=S(M(one,['a'],['z']), S(M(add,['z','b'],['w']), M(one,['w'],['v'])));
            t=s.select_subsequence(); (t.in_keys, t.out_keys, t is s)
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); s[0]=M(one,['b'],['z']); (s.in_keys, D(s(td)))
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); del s[0]; (s.in_keys, s.out_keys)
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); s.append(M(one,['w'],['q'])); (s.in_keys, s.out_keys)
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); s.insert(0, M(one,['q'],['a'])); (s.in_keys, s.out_keys)
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); s.pop(0)
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); s.extend([M(one,['w'],['q'])])
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); (s[-1].out_keys, s[0:2].in_keys, [m.out_keys for m in s])
        s=S(M(one,['a'],['z']), M(add,['z','b'],['w'])); s[5]
        s=S(M(one,['a'],['a']), M(one,['a'],['a'])); (s.in_keys, s.out_keys, D(s(td)))
        s=S(M(two,['a'],['_','z']), M(two,['z'],['_','w'])); (s.in_keys, s.out_keys, D(s(td)))
        s=S(M(one,['a'],['z']), M(one,['a'],['z'])); (s.in_keys, s.out_keys)
        s=S(M(one,[('n','c')],[('n','z')]), M(lambda n: n, ['n'],['w'])); (s.in_keys, s.out_keys)
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s.partial_tolerant
        s=S(M(one,['a'],['z']), W(M(one,['z'],['w']))); (s.in_keys, s.out_keys, D(s(td)))
        w=W(M(nn.Linear(3,2),['a'],['z'])); (w.in_keys, w.out_keys, D(w(td)), w.td_module,
            list(w.state_dict()), w.module, w.weight.shape, w)
        w=W(M(one,['a'],['z'])); w.foo
        w=W(M(one,['a'],['z'])); w(T([3]))
        w=W(nn.Linear(3,2))
        w=WrapModule(lambda td: td.set('q', td['a']+1), in_keys=['a'], out_keys=['q']);
            (w.in_keys, w.out_keys, D(w(td)), w)
        w=WrapModule(lambda td: td.set('q', td['a']+1)); (w.in_keys, w.out_keys, D(w(td)))
        w=WrapModule(lambda td: TensorDict(q=td['a']+1), inplace=True); r=w(td); (r is td, D(td))
        w=WrapModule(lambda td: TensorDict(q=td['a']+1)); r=w(td); (r is td, D(td), D(r))
        w=WrapModule(lambda td: td, in_keys=['a'], out_keys=['q']); w(a=T([3]))
        w=WrapModule(3)
        f=as_tensordict_module(in_keys='a', out_keys='z')(one); (f.in_keys, D(f(td)))
        s=S(M(one,['a'],['z']), M(one,['a'],['y']), M(one,['a'],['z'])); s.out_keys
        s=S(M(one,['a'],['z']), M(one,['b'],['y']), M(one,['a'],['z'])); (s.in_keys)
        s=S(M(one,['a'],['z']), M(one,['z'],['y']), M(one,['b'],['z']), M(one, ['z'],['w'])); (s.in_keys)
        s=S(M(one,['a'],['a']), M(one,['a'],['y'])); (s.in_keys, s.out_keys)
        s=S(M(one,['a'],[('n','z')]), M(one,['n'],['y'])); (s.in_keys, s.out_keys)
        s=S(M(one,['a'],['n']), M(one,[('n','z')],['y'])); (s.in_keys, s.out_keys)
        w=W(M(nn.Linear(3,2),['a'],['z'])); t=TensorDict(a=T([4,3]),batch_size=[4]);
            (w.in_keys, w.out_keys, D(w(t)), w.td_module, list(w.state_dict()), w.weight.shape, w)
        w=W(M(nn.Linear(3,2),['a'],['z'])); w.module
        w=W(M(two,['a'],['z','y'])); w.select_out_keys('y'); (w.out_keys, w.td_module.out_keys, D(w(td)))
        w=W(M(two,['a'],['z','y'])); w.in_keys=['b']; (w.in_keys, w.td_module.in_keys)
        m=M(nn.Linear(3,3),['a'],['z']); m.register_forward_hook(lambda m,i,o: o.set('q', o['z']));
            D(m(TensorDict(a=T([3]))))
        m=M(M(one,['a'],['z']),['a'],['q']); D(m(td))
        m=M(one,['a'],['z']); copy.deepcopy(m)(a=T([3]))
        M(one,['a'],['z']).__name__, MB.__name__
        M(lambda x: {'x':x}, ['a'],['y'])(td)
        M(lambda x: {'x':x}, ['a'],['x'])(td)['x']
        M(lambda x: TensorDict(x=x,y=x,batch_size=[3]), ['a'],['x','y'])(td)
        M(lambda x: TensorDict(x=x,y=x,batch_size=[3]), ['a'],['x','q'])(td)
        M(lambda x: (TensorDict(x=x,batch_size=[3]),x), ['a'],['x','q'])(td)
        M(lambda x: (x, None), ['a'],['x','q'])(td)['q']
        m=M(two,['a'],['z','y'])._write_to_tensordict(td, [T([3]), T([3])]); D(m)
        m=M(two,['a'],['z','y'])._write_to_tensordict(td, [T([3]), T([3])], TensorDict()); D(m)
        m=M(two,['a'],['z','y'])._write_to_tensordict(td, [T([3]), T([3])], out_keys=['q','w']); D(m)
        m=M(two,['a'],['z','y'])._write_to_tensordict(td, T([3])); D(m)
        m=M(two,['a'],['z','y'],inplace=False)._write_to_tensordict(td, (T([3]), T([3]))); D(m)
        S(M(one,['a'],['z']))._compute_in_and_out_keys([M(one,['a'],['z']), M(one,['z'],['w'])])
        m=M(one,['a'],['z'], strict=True); m(TensorDict())
        m=M(lambda x=3: torch.ones(3)*(x if x is not None else 7),['q'],['z']); m(td)['z']
        m=M(lambda x: 1/0,['a'],['z']); m(td)
        m=M(lambda x: 1/0,['q'],['z']); m(td)
        m=M(lambda x: x.foo,['q','a'],['z']); m(td)
        m=M(add, ['a', 'b'], ['z']); m(td, y=3)
        m=M(add, ['a'], ['z']); m(td, y=3)['z']
        m=M(add, {'x':'a'}, ['z']); m(td, y=3)['z']
        m=M(add, {'x':'a'}, ['z']); m(a=T([3]), y=3)
        m=M(add, ['a'], ['z']); m(T([3]), y=3)
        m=M(add, {'x':'a','y':'b'}, ['z']); m(T([3]), T([3]))
        m=M(add, {'x':'a','y':'b'}, ['z']); m(a=T([3]), b=T([3]))
        m=M(lambda *a, **k: (len(a), sorted(k)), {'x':'a', 'y':'b'}, ['z', 'w']); m(TensorDict(a=T([3]), b=T([3])))
        m=S(M(one,['a'],['z'])); m(td, k=3)
        s=S(M(add,['a'],['z'])); s(td, y=3)['z']
        s=S(M(add,['a'],['z']),M(one,['z'],['w'])); s(td, y=3)['z']
        s=S(M(one,['a'],['z']), partial_tolerant=True); s(T([3]))
        s=S(M(one,['q'],['z']), partial_tolerant=True); s(T([3]))
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), inplace=False); s.inplace
        s=S(M(one,['a'],['z']), M(one,['z'],['w']));
            s.inplace, s.strict, s.method, s._complete_out_keys, s._select_before_return
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), selected_out_keys=['w']);
            s._select_before_return, s._out_keys, s._out_keys_apparent, s._complete_out_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), selected_out_keys=['w']); s(T([3]))
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s.select_out_keys('w'); s(T([3]))
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); t=s.select_subsequence(out_keys=['w']);
            t.select_out_keys('w'); t(T([3])), s.out_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s.select_out_keys('z');
            t=s.select_subsequence(out_keys=['w']); t.out_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), partial_tolerant=True, inplace=False);
            t=s.select_subsequence(out_keys=['w']); t.partial_tolerant, t.inplace, type(t)
        s=S({'x':M(one,['a'],['z']), 'y':M(one,['z'],['w'])}); t=s.select_subsequence(out_keys=['z']); t.module
        s=S({'x':M(one,['a'],['z']), 'y':M(one,['z'],['w'])}); del s['x']; (s.in_keys, list(s.module))
        s=S({'x':M(one,['a'],['z']), 'y':M(one,['z'],['w'])}); s['nope']
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s['0']
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s[0:1]=[M(one,['b'],['z'])]; s.in_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); del s[:1]; s.in_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s[0]=nn.Linear(3,2); s.in_keys
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s[0]=lambda td: td; (s.in_keys, s[0])
        s=S(M(one,['a'],['z']), M(one,['z'],['w']), selected_out_keys=['w']);
            s[0]=M(one,['b'],['z']); (s.in_keys, s.out_keys)
        s=S(nn.Linear(3,2)); s
        s=S(M(one,['a'],['z']), nn.Linear(3,2)); s[1]
        s=S({'x':lambda td: td}); s.module
        s=S({'x':M(one,['a'],['z'])}, M(one,['z'],['w']))
        s=S([M(one,['a'],['z'])], M(one,['z'],['w']))
        s=S((M(one,['a'],['z']),)); s.out_keys
        s=S(None)
        s=S(M(one,['a'],['z']), None)
        s=S('foo')
        s=S(M(one,['a'],['z'])); s.foo
        s=S(M(nn.Linear(3,2),['a'],['z'])); s.weight
        l=nn.Linear(3,3); s=S(M(l,['a'],['z']),M(l,['z'],['w'])); list(s.state_dict()), len(list(s.parameters()))
        s=S(M(one,['a'],['z']), M(one,['z'],['w'])); s.reset_out_keys() is s
        td2=td.clone(); s=S(M(one,['a'],['z']), selected_out_keys=['z']); s(td2.lock_())
        m=M(two,['a'],['z','y']).select_out_keys('z'); m(td.lock_())
        m=M(one,['a'],['a'],inplace=True); td.lock_(); m(td, tensordict_out=td)
        s=S(M(two,['a'],['z','b']), selected_out_keys=['z']); D(s(td))
        s=S(M(two,['a'],['z','a']), selected_out_keys=['z']); D(s(td))
        s=S(lambda td: td.set('foo', td['a']), M(one,['foo'],['z'])); s(a=T([3]))
        s=S(M(one,['a'],['z']), lambda td: None); s(td)
        s=S(M(one,['a'],['z']), lambda td: td['z']); s(td)
        s=S(M(one,['a'],['z']), lambda td, k=3: td.set('k', torch.full((3,),k))); D(s(td, k=5))
        M(torch.relu,['a'],['z'])
        M(nn.Linear,['a'],['z'])
        M(nn.Linear(3,2), in_keys=['a'], out_keys=['z'], foo=3)
        M(nn.Linear(3,2))
        M(nn.Linear(3,2), ['a'])
        M(two, ['a'], ['x','_'])(T([3]))
        M(two, ['a'], ['_','_'])(T([3]))
        s=S(M(two,['a'],['z','b'])).select_out_keys('z'); D(s(td))
        s=S(M(two,['a'],['z','a'])).select_out_keys('z'); D(s(td))
        s=S(M(one,['a'],['z']), M(one,['z'],['a'])).select_out_keys('z'); D(s(td))
        from tensordict.nn.utils import mappings as q; q('biased_softplus')
        m=M(two,['a'],['x','y'],inplace=False).select_out_keys('y'); D(m(td))
        m=M(two,['a'],['x','y']).select_out_keys('y'); D(m(td, tensordict_out=TensorDict()))
        M(lambda x: x.foo, ['q'], ['z'])(td)
        M(lambda x: x['foo'], ['q'], ['z'])(td)
        M(lambda x: len(x), ['q'], ['z'])(td)
        M(lambda x: torch.zeros(x), ['q'], ['z'])(td)
        M(lambda x: 3+x, ['q'], ['z'])(td)
        """,  # noqa: E501
    ),
    *programs(
        "settings",
        """
        skip_existing()
        set_skip_existing(3)
        set_skip_existing('z')
        s=set_skip_existing(True); s.set(); skip_existing()
        set_skip_existing(True, thread_local=True).set(); skip_existing()
        interaction_type()
        set_interaction_type('foo')
        set_interaction_type(3)
        set_interaction_type('random').set(); interaction_type()
        list(InteractionType), InteractionType('mode'), InteractionType.RANDOM == 'random',
            str(InteractionType.MEAN), InteractionType.MEAN.value
        InteractionType.from_str('MEAN'), InteractionType.from_str('mean')
        InteractionType.from_str('foo')
        InteractionType('foo')
        composite_lp_aggregate()
        composite_lp_aggregate(nowarn=True)
        set_composite_lp_aggregate(False).set(); composite_lp_aggregate()
        biased_softplus(1.0), list(biased_softplus(1.0).state_dict()), biased_softplus(1.0)(T([3])),
            biased_softplus(0.7, 0.2)(T([3]))
        inv_softplus(1.0), inv_softplus(T([2],start=5)), type(inv_softplus(1.0)), inv_softplus(3)
        mappings('softplus')(T([3])), mappings('exp')(T([3])), mappings('relu')(T([3])),
            mappings('biased_softplus')(T([3])), mappings('biased_softplus_0.5')(T([3])),
            mappings('expln')(T([3]))
        mappings('foo')
        mappings('raw_softplus'), mappings('softplus'), mappings('biased_softplus_0.5_0.3')
        mappings('none')(T([3]))
        mappings('tanh')
        mappings('sigmoid')
        mappings('identity')
        mappings(3)
        mappings('biased_softplus_')
        mappings('biased_softplus_x')
        tdnn.utils.expln(T([5]))
        str(biased_softplus(1.0)), biased_softplus(1.0).bias, biased_softplus(1.0).min_val
        biased_softplus(-1.0)
        inv_softplus(-1.0)
        inv_softplus(T([3]))
        """,  # noqa: E501
    ),
    *programs(
        "distributions",
        """
        x=Delta(T([3])); (x, x.batch_shape, x.event_shape, x.mode, x.mean, x.sample(),
            x.rsample((2,)).shape, x.sample([2]).shape, x.deterministic_sample, x.has_rsample,
            x.param, x.atol, x.rtol)
        x=Delta(T([3])); x.log_prob(T([3])), x.log_prob(T([3])+1), x.log_prob(T([3])+1e-7), x.log_prob(T([2,3]))
        x=Delta(T([2,3])); x.log_prob(T([2,3])), x.log_prob(T([2,3])+torch.tensor([[0.],[1.]])),
            x.batch_shape, x.event_shape
        x=Delta(T([3])); x.update(T([3],start=1)); x.mode
        x=Delta(T([])); x.log_prob(T([])), x.batch_shape, x.event_shape
        x=Delta(T([3])); x.entropy()
        x=Delta(T([3])); x.variance
        x=Delta(T([3])); x.support, Delta.arg_constraints
        x=Delta(T([3]), atol=2.); x.log_prob(T([3])+1)
        x=Delta(T([2,3]), atol=torch.tensor([[0.1],[2]])); x.log_prob(T([2,3])+1)
        x=Delta(T([3]).requires_grad_()); x.sample().requires_grad, x.rsample().requires_grad, x.mode.requires_grad
        Delta(3.)
        x=Delta(T([3],'int64')); x.log_prob(T([3],'int64'))
        x=OneHotCategorical(logits=T([2,3])); (x, x.batch_shape, x.event_shape, x.mode,
            x.deterministic_sample, x.sample().dtype, x.sample((4,)).shape,
            x.log_prob(torch.tensor([[1,0,0],[0,1,0]])), x.mean, x.entropy())
        x=OneHotCategorical(probs=torch.tensor([[.2,.8],[.5,.5]]));
            (x.mode, x.sample().shape, x.log_prob(torch.tensor([[1,0],[0,1]])), x.logits, x.probs)
        x=OneHotCategorical(T([3])); x.mode
        x=OneHotCategorical(logits=T([3]), probs=T([3]))
        x=OneHotCategorical()
        x=OneHotCategorical(logits=T([3])); x.rsample()
        x=OneHotCategorical(logits=T([3])); x.rsample().shape, x.rsample((2,)).shape, x.rsample((2,)).dtype
        x=OneHotCategorical(logits=T([3]).requires_grad_());
            (x.rsample().requires_grad, x.sample().requires_grad, x.has_rsample,
            OneHotCategorical.num_params)
        x=OneHotCategorical(logits=T([3])); x.log_prob(torch.tensor([1.,1,0]))
        x=OneHotCategorical(logits=T([3])); torch.manual_seed(1); x.sample((5,))
        x=OneHotCategorical(logits=T([3])); torch.manual_seed(1); x.rsample((5,))
        torch.manual_seed(1); rand_one_hot(T([4,3]))
        torch.manual_seed(1); rand_one_hot(torch.rand(4,3), do_softmax=False)
        rand_one_hot(T([3])).dtype, rand_one_hot(T([3])).shape, rand_one_hot(T([2,5,3])).shape
        x=TruncatedNormal(0.,1.,-1.,1.); (x, x.batch_shape, x.event_shape, x.mean, x.variance,
            x.entropy(), x.log_prob(torch.tensor(.5)), x.cdf(torch.tensor(.5)),
            x.icdf(torch.tensor(.7)), x.auc, x.support, x.deterministic_sample)
        x=TruncatedNormal(T([3])/4,torch.tensor(2.),-1.,torch.tensor([1.,2,3]));
            (x.mean, x.variance, x.entropy(), x.log_prob(torch.tensor([.5,0,.2])),
            x.cdf(torch.tensor(.5)), x.icdf(torch.tensor(.7)), x.auc, x.rsample((4,)).shape, x.loc,
            x.scale, x.a, x.b)
        x=TruncatedNormal(0.,1.,-1.,1.); x.log_prob(torch.tensor(1.5))
        x=TruncatedNormal(0.,1.,-1.,1.,validate_args=False);
            x.log_prob(torch.tensor(1.5)), x.log_prob(torch.tensor(-1.5))
        x=TruncatedNormal(0.,1.,1.,-1.)
        x=TruncatedNormal(torch.tensor(0.),torch.tensor(1.),torch.tensor(-1,dtype=torch.float64),1.)
        x=TruncatedNormal(0.,1.,-1.,1.); torch.manual_seed(1); x.rsample((5,)), x.sample((2,)), x.mode
        x=TruncatedNormal(0.,1.,-1.,1.); x.stddev, x.eps, x.has_rsample, x.arg_constraints, x.p(torch.tensor(0.))
        x=TruncatedNormal(0.,1.,-float('inf'),float('inf'));
            (x.mean, x.variance, x.entropy(), x.log_prob(torch.tensor(.5)))
        x=TruncatedNormal(0.,1.,-float('inf'),1.); (x.mean, x.variance, x.entropy(), x.log_prob(torch.tensor(.5)))
        x=TruncatedNormal(100.,1.,-1.,1.); (x.mean, x.variance, x.entropy(), x.log_prob(torch.tensor(.5)), x.rsample())
        from tensordict.nn.distributions.truncated_normal import TruncatedStandardNormal as X;
            x=X(-1.,1.); (x, x.mean, x.variance, x.entropy(), x.log_prob(torch.tensor(.5)),
            x.cdf(torch.tensor(.5)), x.icdf(torch.tensor(.5)), x.support, x.auc, x.a, x.b)
        e=NormalParamExtractor(); e(T([2,4])), e, e.scale_mapping, e.scale_lb
        e=NormalParamExtractor(scale_mapping='exp', scale_lb=0.3); e(T([2,4]))
        e=NormalParamExtractor(); e(T([2,3]))
        e=NormalParamExtractor(); e(T([2,4]), T([3]))
        e=NormalParamExtractor(scale_mapping='foo')
        e=NormalParamExtractor(scale_mapping=torch.exp)
        e=NormalParamExtractor(scale_mapping=3)
        e=AddStateIndependentNormalScale(4); (e, e(T([2,4])), e.state_independent_scale, e.scale_lb,
            list(e.state_dict()))
        e=AddStateIndependentNormalScale((4,)); e(T([2,4]), T([3]))
        e=AddStateIndependentNormalScale(torch.Size([4]), scale_mapping='biased_softplus',
            scale_lb=0.1, init_value=0.7); e(T([2,4]))
        e=AddStateIndependentNormalScale(4, make_param=False);
            (list(e.state_dict()), list(e.parameters()), e.state_independent_scale)
        e=AddStateIndependentNormalScale(4); e(T([2,3]))
        e=AddStateIndependentNormalScale(); (e, e(T([2,4])), e.state_independent_scale)
        e=AddStateIndependentNormalScale(3, device='meta'); e.state_independent_scale
        e=AddStateIndependentNormalScale([3]); e(T([3]))
        e=AddStateIndependentNormalScale(1); e(T([2,4]))
        e=AddStateIndependentNormalScale((2,4)); e(T([5,2,4]))[1].shape
        e=AddStateIndependentNormalScale(4); e()
        d.Distribution.deterministic_sample, d.Normal.__dict__['deterministic_sample'],
            d.Distribution.__dict__['deterministic_sample']
        """,  # noqa: E501
    ),
    *programs(
        "CompositeDistribution",
        """
        c=C(); (c.batch_shape, c.event_shape, type(c), c.dists, c.log_prob_key, c.entropy_key,
            c.log_prob_names if hasattr(c,'log_prob_names') else 0)
        c=C(); c
        c=C(); torch.manual_seed(0); s=c.sample(); (D(s), s.batch_size, c.sample((2,)).batch_size,
            c.rsample().keys(True,True))
        c=C(); c.rsample()
        c=CompositeDistribution(P().select('c'), {'c': d.Normal}); s=c.rsample((2,));
            (s.batch_size, list(s.keys(True,True)), s['c'].requires_grad)
        c=C(); s=c.sample(); lp=c.log_prob(s); (type(lp), list(lp.keys(True,True)), lp.batch_size,
            [v.shape for v in lp.values(True,True)])
        c=C(); s=c.sample(); lp=c.log_prob_composite(s); (type(lp), list(lp.keys(True,True)), lp.batch_size, lp is s)
        c=C(); s=c.sample(); lp=c.log_prob_composite(s, include_sum=True);
            (type(lp), list(lp.keys(True,True)), lp['sample_log_prob'].shape)
        c=C(); s=c.sample(); lp=c.log_prob_composite(s, include_sum=False); (list(lp.keys(True,True)))
        c=C(log_prob_key='lp'); s=c.sample(); lp=c.log_prob_composite(s, include_sum=True);
            (list(lp.keys(True,True)), c.log_prob_key)
        c=C(log_prob_key=('x','lp'), entropy_key='ent'); (c.log_prob_key, c.entropy_key)
        c=C(); c.log_prob_key='foo'; c.log_prob_key
        c=C(); c.log_prob_key=None; c.log_prob_key
        c=C(); e=c.entropy(); (type(e), list(e.keys(True,True)), e.batch_size, [v.shape for v in e.values(True,True)])
        c=C(); e=c.entropy_composite(); (list(e.keys(True,True)))
        c=C(); e=c.entropy_composite(include_sum=True); (list(e.keys(True,True)), e['entropy'])
        c=C(entropy_key='foo'); e=c.entropy_composite(include_sum=True); (list(e.keys(True,True)))
        c=C(); e=c.entropy(aggregate_probabilities=True); type(e)
        c=C(); e=c.entropy(include_sum=True); list(e.keys(True,True))
        c=C(); (D(c.mode), c.mode.batch_size)
        c=C(); (D(c.mean))
        c=CompositeDistribution(P().select('c'), {'c': d.Normal});
            (D(c.mean), D(c.mode), D(c.deterministic_sample), D(c.cdf(c.mean)),
            list(c.cdf(c.mean).keys()), c.icdf(c.cdf(c.mean)))
        c=C(); (D(c.deterministic_sample))
        c=C(); s,lp=c.sample_and_log_prob(); (list(s.keys(True,True)), type(lp), list(lp.keys(True,True)))
        c=C(); s,lp=c.sample_and_log_prob((2,)); (s.batch_size, lp.batch_size)
        c=CompositeDistribution(P().select('c'), {'c': d.Normal}); s,lp=c.rsample_and_log_prob();
            (list(s.keys(True,True)), type(lp), list(lp.keys(True,True)))
        c=CompositeDistribution(P(), MAP, name_map={'c': ('x','cont'), ('n','d'): 'disc'});
            s=c.sample(); (list(s.keys(True,True)), list(c.log_prob(s).keys(True,True)),
            list(c.entropy().keys(True,True)), list(c.mode.keys(True,True)))
        c=CompositeDistribution(P(), MAP, name_map={'c': ('x','cont')}); s=c.sample(); (list(s.keys(True,True)))
        c=CompositeDistribution(P(), MAP, name_map={'q': ('x','cont')})
        c=CompositeDistribution(P(), MAP, extra_kwargs={'c': {'validate_args': False},
            ('n','d'): {'validate_args': False}}); c.dists
        c=CompositeDistribution(P(), MAP, extra_kwargs={'c': {'foo': False}})
        c=CompositeDistribution(P(), MAP, extra_kwargs={'q': {'foo': False}})
        c=CompositeDistribution(P(), {'c': d.Normal}); c.sample()
        c=CompositeDistribution(P(), {'c': d.Normal, 'q': d.Normal}); c.sample()
        c=CompositeDistribution(P(), {'c': 3})
        c=CompositeDistribution(P(), MAP, foo=3)
        c=CompositeDistribution({'c': {'loc': T([3]), 'scale': torch.ones(3)}}, {'c': d.Normal}); c.sample()
        c=CompositeDistribution(P(), {'c': lambda loc, scale: d.Independent(d.Normal(loc,scale),1),
            ('n','d'): d.Categorical}); s=c.sample();
            ([v.shape for v in c.log_prob(s).values(True,True)], c.log_prob(s).keys(True,True))
        c=CompositeDistribution.from_distributions(P(), {'c': d.Normal(T([3]),torch.ones(3)),
            ('n','d'): d.Categorical(logits=T([3,5]))}); (c, c.batch_shape, D(c.mode))
        c=CompositeDistribution.from_distributions(P(), {'c': d.Normal(T([3]),torch.ones(3))},
            name_map={'c':'x'}); (list(c.sample().keys()), c.batch_shape)
        c=CompositeDistribution.from_distributions(TensorDict(),
            {'c': d.Normal(T([3]),torch.ones(3))}); (c.sample(), c.batch_shape)
        c=C(); s=c.sample(); c.log_prob(s.select('c'))
        c=C(); (len(c), list(c), list(c.keys()), c['c'], c['n','d'], 'c' in c, list(c.items()), c.get('q'))
        c=C(); c['q']
        c=C(); c.variance
        c=C(); c.expand((2,3))
        c=C(); c.cdf(c.sample())
        c=C(); s=c.sample((2,)); lp=c.log_prob(s); (lp.batch_size, [v.shape for v in lp.values(True,True)])
        from tensordict.nn.distributions.composite import _add_suffix as f;
            f('a','_x'), f(('a','b'),'_x'), f(('a',),'_x')
        c=CompositeDistribution(TensorDict({'c':{'param':T([3,4])}},[3]),
            {'c': tdnn.distributions.Delta}); (D(c.sample()), D(c.mode), D(c.deterministic_sample),
            c.log_prob(c.sample()))
        c=CompositeDistribution(TensorDict({'c':{'param':T([3,4])}},[3]), {'c': tdnn.distributions.Delta}); c.entropy()
        c=CompositeDistribution(TensorDict({'c':{'probs':torch.rand([3,4])}},[3]), {'c': d.Bernoulli}); c.rsample()
        c=CompositeDistribution(TensorDict({'c':{'concentration':torch.rand([3,4])+1}},[3]),
            {'c': d.Dirichlet}); c.deterministic_sample.shape, c.mode['c'].shape
        """,  # noqa: E501
    ),
    *programs(
        "ProbabilisticTensorDictModule",
        """
        p=normal(); (p, p.in_keys, p.out_keys, p.default_interaction_type, p.log_prob_key,
            p.log_prob_keys, p.dist_params_keys, p.dist_sample_keys, p.distribution_class,
            p.distribution_kwargs, p.return_log_prob, p.cache_dist, p.n_empirical_estimate,
            p.num_samples)
        t = loc_scale(); p=normal(); r=p(t); (r is t, r['x'], list(r.keys()))
        t = loc_scale(); p=normal(default_interaction_type=InteractionType.RANDOM); torch.manual_seed(0); p(t)['x']
        t = loc_scale(); p=normal(default_interaction_type='random'); torch.manual_seed(0); p(t)['x']
        p=normal(default_interaction_type='foo')
        t = loc_scale(); p=normal(return_log_prob=True); (p.out_keys, p.log_prob_key, p.log_prob_keys, D(p(t)), p)
        t = loc_scale(); p=normal(return_log_prob=True, log_prob_key='lp');
            (p.out_keys, p.log_prob_key, p.log_prob_keys, list(p(t).keys()))
        t = loc_scale(); p=normal(return_log_prob=True, log_prob_keys=['lp']);
            (p.out_keys, p.log_prob_key, p.log_prob_keys, list(p(t).keys()))
        p=normal(return_log_prob=True, log_prob_keys=['lp','lq']); (p.out_keys)
        p=normal(return_log_prob=True, log_prob_keys=['lp'], log_prob_key='lq'); (p.out_keys)
        p=normal(log_prob_key='lp'); (p.out_keys, p.log_prob_key, p.log_prob_keys)
        p=normal(log_prob_keys=['lp']); (p.out_keys, p.log_prob_key, p.log_prob_keys)
        p=PM(in_keys=['loc','scale'], out_keys=[('n','x')], distribution_class=d.Normal,
            return_log_prob=True); (p.out_keys, p.log_prob_key)
        p=PM(in_keys=['loc','scale'], distribution_class=d.Normal); p.out_keys
        p=PM(in_keys=['loc','scale'], out_keys='x', distribution_class=d.Normal); p.out_keys
        p=PM(in_keys='param', out_keys='x'); (p.in_keys, p.distribution_class, p(TensorDict(param=T([3]))))
        p=PM(in_keys=['foo'], out_keys='x'); (p.in_keys, p.distribution_class, p(TensorDict(foo=T([3]))))
        p=PM(in_keys={'loc':'a','scale':('n','b')}, out_keys=['x'], distribution_class=d.Normal);
            (p.in_keys, p.dist_params_keys, p(TensorDict(a=T([3]),n={'b':torch.ones(3)}))['x'], p)
        p=PM(in_keys=['a','b'], out_keys=['x'], distribution_class=d.Normal); p(TensorDict(a=T([3]),b=torch.ones(3)))
        p=PM(in_keys=[('n','loc'),('n','scale')], out_keys=['x'], distribution_class=d.Normal);
            (p.in_keys, p(TensorDict(n={'loc':T([3]),'scale':torch.ones(3)}))['x'])
        p=normal(); p(TensorDict(loc=T([3])))
        p=normal(); p(TensorDict(loc=T([3]),scale=-torch.ones(3)))
        p=normal(); (p(T([3]), torch.ones(3)), p(loc=T([3]), scale=torch.ones(3)))
        p=normal(return_log_prob=True); (p(T([3]), torch.ones(3)))
        t = loc_scale(); p=normal(); x=p.get_dist(t); (x, p.build_dist_from_params(t))
        t = loc_scale(); p=normal(); r=p(t); (p.log_prob(r), p.log_prob(r.set('x', r['x']+1)),
            p.log_prob(r, dist=d.Normal(r['loc'],2*r['scale'])))
        t = loc_scale(); p=normal(); p.log_prob(t)
        t = loc_scale(); p=normal(cache_dist=True); a=p.get_dist(t); (p.get_dist(t) is a, p.cache_dist)
        t = loc_scale(); p=normal(num_samples=2); r=p(t); (r['x'].shape, r is t, r.batch_size, p.num_samples)
        t = loc_scale(); p=normal(num_samples=2, default_interaction_type='random'); r=p(t);
            (r['x'].shape, r is t, r.batch_size, list(r.keys()), r['loc'].shape)
        t = loc_scale(); p=normal(num_samples=torch.Size([2,5]), default_interaction_type='random',
            return_log_prob=True); r=p(t); (r['x'].shape, r is t, r.batch_size,
            r['x_log_prob'].shape)
        t = loc_scale(); p=normal(num_samples=0, default_interaction_type='random'); r=p(t);
            (r['x'].shape, r.batch_size)
        t = loc_scale(); p=normal(distribution_kwargs={'validate_args':False}); p.get_dist(t)
        t = loc_scale(); p=normal(distribution_kwargs={'foo':False}); p.get_dist(t)
        t = loc_scale(); p=normal(generator=torch.Generator().manual_seed(3),
            default_interaction_type='random'); p(t)['x']
        t = loc_scale(); p=normal(generator=3, default_interaction_type='random'); (p(t)['x'], p(t)['x'], p.in_keys)
        p=normal(generator='rng', default_interaction_type='random'); p.in_keys
        t = loc_scale(); p=normal(generator='rng', default_interaction_type='random');
            t['rng']=torch.Generator().manual_seed(3).get_state(); p(t)
        t = loc_scale(); o=TensorDict(batch_size=[3]); p=normal(); r=p(t, tensordict_out=o);
            (r is o, list(o.keys()), list(t.keys()))
        t = loc_scale(); p=normal(); r=p(t, _requires_sample=False); list(r.keys())
        t = loc_scale(); t['x']=T([3]); p=normal(return_log_prob=True); r=p(t, _requires_sample=False); D(r), r is t
        t = loc_scale(); t['x']=T([3]); p=normal(return_log_prob=True, log_prob_key='lp');
            o=TensorDict(); r=p(t, tensordict_out=o, _requires_sample=False); D(r), list(t.keys())
        t = loc_scale(); p=normal(return_log_prob=True); p(t, _requires_sample=False)
        u=params(); v=CP()(u.copy()); p=CP(return_log_prob=True); r=p(v, _requires_sample=False); D(r)
        p=normal(foo=3)
        p=PM(in_keys=3, out_keys=['x'])
        p=PM(in_keys=['loc'], out_keys=3)
        t = loc_scale(); p=normal(); p.out_keys=['q']; (p(t).keys())
        p=CP(); (p, p.out_keys, p.log_prob_keys, p.dist_params_keys, p.dist_sample_keys)
        p=CP(); r=p(params()); (D(r), list(r.keys(True,True)))
        p=CP(return_log_prob=True); r=p(params()); (p.out_keys, p.log_prob_keys,
            [(k,v.shape) for k,v in r.items(True,True)])
        p=CP(return_log_prob=True); p.log_prob_key
        p=CP(return_log_prob=True, log_prob_keys=['lc','ld']); r=p(params());
            (p.out_keys, p.log_prob_keys, list(r.keys(True,True)))
        p=CP(return_log_prob=True, log_prob_key='lp'); r=p(params());
            (p.out_keys, p.log_prob_keys, list(r.keys(True,True)))
        p=CP(out_keys=None); (p.out_keys)
        p=CP(out_keys=['c2',('m','d')]); r=p(params()); (p.out_keys, list(r.keys(True,True)))
        p=CP(out_keys=['q','w'], distribution_kwargs={'distribution_map': MAP,
            'name_map': {'c':'q',('n','d'):'w'}}); r=p(params());
            (p.out_keys, list(r.keys(True,True)))
        p=CP(out_keys=None, distribution_kwargs={'distribution_map': MAP,
            'name_map': {'c':'q',('n','d'):'w'}}); r=p(params());
            (p.out_keys, list(r.keys(True,True)))
        p=CP(out_keys=['c'], distribution_kwargs={'distribution_map': MAP}); r=p(params());
            (p.out_keys, list(r.keys(True,True)))
        p=CP(); r=p(params()); x=p.get_dist(params()); (x, p.log_prob(r))
        p=CP(num_samples=(2,), default_interaction_type='random'); r=p(params()); (r.batch_size, r['c'].shape)
        p=PM(in_keys=['logits'],out_keys=['x'],distribution_class=d.Categorical,num_samples=4,default_interaction_type='random',return_log_prob=True);
            torch.manual_seed(0); r=p(TensorDict(logits=T([2,3]),batch_size=[2]));
            (r['x'], r['x_log_prob'])
        p=PM(in_keys=['logits'],out_keys=['x'],distribution_class=d.Categorical,num_samples=4);
            r=p(TensorDict(logits=T([2,3]),batch_size=[2])); (r['x'], r.batch_size, list(r.keys()))
        u=TensorDict(loc=T([3]),scale=torch.ones(3));
            p=normal(generator='rng', default_interaction_type='random');
            u['rng']=torch.Generator().manual_seed(3).get_state(); s=u['rng'].clone(); r=p(u);
            (r['x'], (r['rng']==s).all(), r['rng'] is s, p(u)['x'])
        u=TensorDict(loc=T([3]),scale=torch.ones(3)); p=normal(generator='rng', default_interaction_type='random'); p(u)
        u=TensorDict(loc=T([3]),scale=torch.ones(3));
            p=normal(generator='rng', default_interaction_type='random'); u['rng']=torch.tensor(3);
            r=p(u); (r['x'], r['rng'])
        u=TensorDict(loc=T([3]),scale=torch.ones(3));
            p=normal(generator='rng', default_interaction_type='random');
            u.set_non_tensor('rng', torch.Generator().manual_seed(3)); r=p(u); (r['x'], r['rng'])
        u=TensorDict(loc=T([3]),scale=torch.ones(3));
            p=normal(generator=('m','rng'), default_interaction_type='random');
            u.set_non_tensor(('m','rng'), 3); r=p(u); (r['x'], r['m'])
        t = loc_scale(); g=torch.Generator().manual_seed(3); torch.manual_seed(0); a=torch.rand(1);
            torch.manual_seed(0); p=normal(generator=g, default_interaction_type='random'); p(t);
            (a==torch.rand(1), g.get_state()[:5], torch.Generator().manual_seed(3).get_state()[:5])
        p=normal(generator=3.5)
        p=normal(generator=[3])
        p=normal(); x=p._dist_sample(d.Normal(T([3]),torch.ones(3)), InteractionType.MEAN); x
        p=normal(default_interaction_type='random'); torch.manual_seed(0);
            x=p._dist_sample(d.Normal(T([3]),torch.ones(3))); x
        p=normal(default_interaction_type='random'); torch.manual_seed(0);
            x=p._dist_sample(d.Normal(T([3]),torch.ones(3)), None,
            generator=torch.Generator().manual_seed(3)); x
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            (q, q.in_keys, q.out_keys, q.default_interaction_type, tuple(q.num_samples),
            q.log_prob_key, q.log_prob_keys, q.dist_params_keys, q.dist_sample_keys, len(q),
            q.det_part, type(q[:1]), type(q[1]))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            u=TensorDict(a=T([3,8]),batch_size=[3]); r=q(u); (r is u, list(r.keys()), r['x'])
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            u=TensorDict(a=T([3,8]),batch_size=[3]); (q.get_dist(u), list(u.keys()),
            list(q.get_dist_params(u).keys()), list(u.keys()),
            q.build_dist_from_params(q.get_dist_params(u)))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            u=TensorDict(a=T([3,8]),batch_size=[3]); r=q(u);
            (q.log_prob(r), q.log_prob(r, dist=d.Normal(r['loc'],2*r['scale'])))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal(return_log_prob=True));
            u=TensorDict(a=T([3,8]),batch_size=[3]); (list(q(u).keys()), q.out_keys, q(T([3,8])))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale'])); q
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale'])); q.get_dist(TensorDict(a=T([3,8])))
        q=PS(normal(), M(one,['x'],['y'])); u=loc_scale(); (q.out_keys, list(q(u).keys()), q.get_dist(u))
        q=PS(normal(), M(one,['x'],['y'])); q.default_interaction_type
        q=PS(normal(), PM(in_keys={'loc':'x','scale':'scale'}, out_keys=['y'],
            distribution_class=d.Normal)); u=loc_scale();
            (q, q.in_keys, q.out_keys, list(q(u).keys()), type(q.get_dist(u)), q.log_prob_keys,
            q.dist_sample_keys, q.dist_params_keys, q.default_interaction_type)
        q=PS(normal(), PM(in_keys={'loc':'x','scale':'scale'}, out_keys=['y'],
            distribution_class=d.Normal)); u=loc_scale(); q(u); q.log_prob(u)
        q=PS(normal(return_log_prob=True), PM(in_keys={'loc':'x','scale':'scale'}, out_keys=['y'],
            distribution_class=d.Normal, return_log_prob=True)); u=loc_scale();
            (list(q(u).keys()), q.log_prob(u), q.log_prob_keys)
        q=PS(normal(return_log_prob=True), PM(in_keys={'loc':'x','scale':'scale'}, out_keys=['y'],
            distribution_class=d.Normal, return_log_prob=True), return_composite=True);
            u=loc_scale(); (list(q(u).keys()), q.get_dist(u), q.log_prob(u), q.log_prob_keys,
            q.dist_sample_keys)
        q=PS(normal(return_log_prob=True), PM(in_keys={'loc':'x','scale':'scale'}, out_keys=['y'],
            distribution_class=d.Normal, return_log_prob=True), return_composite=False);
            u=loc_scale(); (list(q(u).keys()), q.get_dist(u), q.log_prob(u), q.log_prob_keys,
            q.dist_sample_keys)
        q=PS(M(lambda x: x,['a'],['params']), CP());
            u=TensorDict(a=params()['params'],batch_size=[3]);
            (list(q(u).keys(True,True)), q.log_prob(u), q.out_keys)
        q=PS(M(lambda x: x,['a'],['params']), CP(return_log_prob=True));
            u=TensorDict(a=params()['params'],batch_size=[3]);
            (list(q(u).keys(True,True)), q.log_prob(u), q.out_keys, q.log_prob_keys)
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal(), inplace=False);
            u=TensorDict(a=T([3,8]),batch_size=[3]); r=q(u); (r is u, list(r.keys()), r.batch_size)
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal(), selected_out_keys=['x']);
            u=TensorDict(a=T([3,8]),batch_size=[3]); r=q(u); (list(r.keys()), q.out_keys)
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal()).select_out_keys('x');
            u=TensorDict(a=T([3,8]),batch_size=[3]); r=q(u);
            (list(r.keys()), q.out_keys, q.get_dist(u))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']),
            normal()).select_subsequence(out_keys=['loc']); (type(q), q.out_keys)
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            u=TensorDict(a=T([3,8]),batch_size=[3]); q(u, _requires_sample=False).keys()
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal(return_log_prob=True));
            u=TensorDict(a=T([3,8]),x=T([3,4]),batch_size=[3]); D(q(u, _requires_sample=False))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal(num_samples=2));
            u=TensorDict(a=T([3,8]),batch_size=[3]); r=q(u); (r.batch_size, q.num_samples, r is u)
        q=PS(collections.OrderedDict(n=M(NormalParamExtractor(),['a'],['loc','scale']),
            d=normal())); (q.module, q.get_dist(TensorDict(a=T([8]))))
        q=PS([M(NormalParamExtractor(),['a'],['loc','scale']), normal()]); q.out_keys
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal(), return_composite=True);
            u=TensorDict(a=T([3,8]),batch_size=[3]); (q.get_dist(u), q.log_prob(q(u)))
        q=PS(S(M(NormalParamExtractor(),['a'],['loc','scale']), normal()));
            u=TensorDict(a=T([3,8]),batch_size=[3]); q.get_dist(u)
        s=S(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            u=TensorDict(a=T([3,8]),batch_size=[3]); (list(s(u).keys()), type(s[:]))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            q[0]=M(lambda x: (x,x.exp()),['a'],['loc','scale']); q.append(M(one,['x'],['y']));
            (len(q), q.out_keys)
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            u=TensorDict(a=T([3,8]),batch_size=[3]); o=TensorDict(batch_size=[3]);
            r=q(u, tensordict_out=o); (r is o, list(o.keys()), list(u.keys()))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            u=TensorDict(a=T([3,8]),batch_size=[3]); q.get_dist(u,
            tensordict_out=TensorDict(batch_size=[3]))
        q=PS(M(NormalParamExtractor(),['a'],['loc','scale']), normal());
            q.log_prob(TensorDict(a=T([3,8]),batch_size=[3]))
        q=PS(M(one,['a'],['b']), PS(M(NormalParamExtractor(),['b'],['loc','scale']), normal()),
            M(one,['x'],['y'])); u=TensorDict(a=T([3,8]),batch_size=[3]);
            (list(q(u).keys()), q.get_dist(u), q.default_interaction_type, q.dist_params_keys)
        """,  # noqa: E501
    ),
    *programs(
        "dispatch",
        """
        m=Dispatched(); (m(td), m.seen)
        m=Dispatched(); (m(T([3])), m.seen)
        m=Dispatched(); (m(a=T([3])), m.seen)
        m=Dispatched(); (m(T([3, 4]), T([3, 4, 5])), m.seen)
        m=Dispatched(); (m(T([3]), T([4])), m.seen)
        m=Dispatched(); m(b=T([3]))
        m=Dispatched(); m(T([3]), a=T([3]))
        m=Dispatched(); m(T([3]), T([3]), q=3)
        m=Dispatched(); m(T([3]), T([3]), T([3]))
        m=Dispatched(); m(tensordict=td)
        m=Dispatched(); m()
        m=Dispatched(); m({'a': T([3])})
        m=Nested(); (m(T([3]), T([3])), m.seen)
        m=Nested(); m(T([3]), **{'n.c': T([3])})
        m=Nested(); m(T([3]), n_c=T([3]))
        m=Nested(); m(td)
        m=Nested(); m.select_out_keys('z')(T([3]), T([3]))
        m=Named(); (m(T([3])), m(T([3]), k=5), m(T([3]), 5), m(td, 5), m(td, k=2))
        m=Named(); (m.other(T([3]), n_c=T([3])), m.other(td))
        m=Named(); m.other(T([3]))
        Empty().in_keys
        Empty().out_keys
        f=dispatch(source=['a'], dest=['z'])(double);
            (f(T([3])), f(a=T([3])), f(td), f(tensordict=td), f(T([3]), 3), f(td, k=3), f.__name__)
        dispatch(double)(td)
        dispatch(source=['a'])(double)(T([3]))
        m=Empty(); m.in_keys=['a', ('b', ('c',))]; m.out_keys=('z',); (m.in_keys, m.out_keys, m.out_keys_source)
        dispatch(lambda self, td: td)
        dispatch.DEFAULT_SEPARATOR, dispatch.DEFAULT_SOURCE, dispatch.DEFAULT_DEST
        """,  # noqa: E501
    ),
    *programs(
        "TensorClassModuleBase",
        """
        m=AddFields(); (m.input_type, m.output_type, m(Two(a=T([3]), b=T([3]), batch_size=[3])).z)
        m=AddFields().as_td_module(); (m.in_keys, m.out_keys, str(m))
        m=AddFields().as_td_module(); (m(td), m(td) is td)
        m=AddFields().as_td_module(); (m(a=T([3]), b=T([3])), m(T([3]), T([3])))
        m=S(AddFields().as_td_module(), M(one, ['z'], ['w'])); (m.in_keys, m.out_keys, m(td))
        AddFields().as_td_module()(TensorDict(a=T([3])))
        """,  # noqa: E501
    ),
    *programs(
        "EnsembleModule",
        """
        e=EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 4);
            (e.in_keys, e.out_keys, list(e.state_dict()), type(e.params_td), e.params_td.batch_size)
        e=EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 4);
            r=e(TensorDict(a=T([5,3]),batch_size=[5]));
            (r.batch_size, {k:v.shape for k,v in r.items()})
        e=EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 4, expand_input=False);
            e(TensorDict(a=T([4,5,3]),batch_size=[4,5]))['z'].shape
        e=EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 4, expand_input=False); e(TensorDict(a=T([5,3]),batch_size=[5]))
        e=EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 4); e(T([5,3])).shape
        EnsembleModule(nn.Linear(3,2), 4)
        e=EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 4); e.reset_parameters_recursive()
        EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 0)
        e=EnsembleModule(M(one,['a'],['z']), 4); e(TensorDict(a=T([5,3]),batch_size=[5]))
        e=EnsembleModule(M(nn.Linear(3,2),['a'],['z']), 4).select_out_keys('z'); e.out_keys
        """,  # noqa: E501
    ),
    *programs(
        "reset_parameters_recursive",
        """
        M(one,['a'],['z']).reset_parameters_recursive()
        m=M(nn.Linear(3,2),['a'],['z']); w=m.weight.data.clone(); r=m.reset_parameters_recursive();
            (r, (w==m.weight).any())
        m=M(nn.Linear(3,2),['a'],['z']); p=TensorDict.from_module(m).data.clone(); p0=p.clone();
            w=m.weight.data.clone(); r=m.reset_parameters_recursive(p);
            ((w==m.weight).all(), (p==p0).any(), (r==p).all(), r['module','weight'].requires_grad,
            type(r))
        m=M(nn.Linear(3,2),['a'],['z']); m.reset_parameters_recursive(TensorDict.from_module(m).data.expand(3))
        s=S(M(nn.Linear(3,2),['a'],['z']), M(nn.BatchNorm1d(2),['z'],['w']));
            w=s[0].weight.data.clone(); s.reset_parameters_recursive(); (w==s[0].weight).any()
        """,  # noqa: E501
    ),
]

CASES = differing(
    CASES,
    "c=CompositeDistribution(P(), {'c': d.Normal, 'q': d.Normal}); c.sample()",
    reason="keys are shown as those of a dictionary, and not by a private class",
    ours="'with keys dict_keys(' in str(error)",
)

HELPERS = (SETUP,)
"""The beginnings of programs: answers go by what follows them."""
