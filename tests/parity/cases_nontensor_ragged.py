"""Stacks of values whose rows differ in length."""

from frame import cases

PREFIX = (
    "from tensordict import NonTensorData, NonTensorStack, lazy_stack; "
    "import copy; import pickle; "
    "show = lambda x: (type(x).__name__, x.tolist(), list(x.batch_size)); "
    "F = NonTensorStack.from_list; "
    "R = F([['a'], ['b', 'c']]); E = F([['a'], [], ['b', 'c']]); "
    "N = F([[['a']], [['b', 'c'], ['d']]]); "
    "td = TensorDict(v=[['a'], ['b', 'c']], batch_size=[2]); "
)

READS = """
[show(x) for x in (R, E, N)], R.stack_dim
[show(x) for x in (R[0], R[1], R[-1], R[:1], R[1:], R[...], R[None])]
[show(x) for x in (E[1], E[2], E[:2], E[1:], E[[1, 0]])]
[show(x) for x in (N[0], N[1], N[1][0], N[1, 0], N[:1], N.unbind(0)[1])]
[show(R[torch.tensor(at)]) for at in ([1, 0], [True, False], [[0, 1], [1, 0]])]
show(R[[1, 1]])
[show(x) for x in (R[0, 0], R[1, 1], R[:, 0], R[0, :], R[None, 0])]
R[5]
len(R), list(map(show, R)), list(map(show, R.unbind(0))), list(map(show, R.tensordicts))
[show(x) for x in (R.unsqueeze(0), R.unsqueeze(1), R.unsqueeze(-1), R.squeeze())]
R.unsqueeze(0).stack_dim, R.unsqueeze(1).stack_dim
[show(x) for x in (*R.split(1), *R.split([1, 1]), *R.chunk(2), *R.tensor_split(2))]
show(R.reshape(-1)), show(R.flatten())
show(R.expand(2, 2, -1)), show(R.expand(3, *R.batch_size))
show(R.repeat_interleave(2, dim=0))
show(R.permute(0, 1)), show(R.transpose(0, 0)), show(R.maybe_to_stack())
[show(x) for x in (R.clone(), copy.deepcopy(R), pickle.loads(pickle.dumps(R)))]
show(torch.cat([R, R])), show(torch.cat([R, R], 1)), show(torch.cat([R, E]))
show(torch.cat([R, F([['q', 'w']])])), show(torch.cat([F([['q', 'w']]), R]))
show(torch.cat([F([['q', 'w']]), F([['q']])])), show(torch.cat([F([['q']]), F([['w']])]))
[show(torch.stack([R, R], dim)) for dim in (0, 1, 2)]
show(R.where(torch.tensor([True, False]), F([['z'], ['y', 'x']])))
show(R.where(torch.tensor([True, False]), R.clone()))
R.numpy(), R.to_dict()
"""

WRITES = """
R[1] = NonTensorStack('q', 'w'); show(R)
R[1][0] = 'q'; show(R)
R[1][0].data = 'q'; show(R)
R.update(NonTensorStack('z', 'w')); show(R)
R.update(F([['z'], ['y', 'x']])); show(R)
R.update_(F([['z'], ['y', 'x']])); show(R)
R.update(F([['z'], ['y', 'x']]).clone()); show(R)
R.append(NonTensorStack('q', 'w', 'e')); show(R)
C = R.clone(); C[1][0] = 'q'; show(R), show(C)
"""

ENTRIES = """
td['v'], td[0]['v'], td[:1]['v'], td[torch.tensor([1, 0])]['v'], td.get_non_tensor('v')
td.unsqueeze(0)['v'], td.unsqueeze(-1)['v'], td.reshape(1, 2)['v'], td.expand(3, 2)['v']
td.unsqueeze(1).permute(1, 0)['v'], td.unsqueeze(-1).get('v').batch_size
torch.cat([td, td])['v'], td.repeat_interleave(2, 0)['v']
td.masked_select(torch.tensor([True, False]))['v'], td.split(1)[0]['v']
td.chunk(2)[1]['v']
td.unbind(0)[1]['v'], [part['v'] for part in td]
td[1] = TensorDict(v=NonTensorStack('x', 'y')); td['v']
td.update(TensorDict(v=[['x'], ['y', 'z']], batch_size=[2])); td['v']
td.update_(TensorDict(v=[['x'], ['y', 'z']], batch_size=[2])); td['v']
td.where(torch.tensor([True, False]), td.clone())['v']
td['v'][0][0] = 'z'; td['v']
td.to_dict(), pickle.loads(pickle.dumps(td))['v'], copy.deepcopy(td)['v']
td = lazy_stack([TensorDict(v=['a']), TensorDict(v=['b', 'c'])]); td['v'], td[1]['v']
td = lazy_stack([TensorDict(v=['a']), TensorDict(v=['b', 'c'])]); td.contiguous()['v']
"""

CASES = [
    *cases(
        "ragged values",
        "\n".join(
            PREFIX + program
            for program in f"{READS}{WRITES}{ENTRIES}".splitlines()
            if program
        ),
        on="empty",
    )
]

HELPERS = (PREFIX,)
"""The beginnings of programs: answers go by what follows them."""
