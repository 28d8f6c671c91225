"""Tensors that a container holds whole, whatever its batch size."""

from frame import cases

CASES = [
    *cases(
        "UnbatchedTensor",
        """
        repr(U(T([4]))), str(U(T([4]))), f"{U(T([4]))}"
        U.__name__, U.__module__, issubclass(U, Tensor)
        U(T([4])).batch_size, U(T([4]), batch_size=[2, 3]).batch_size
        U(T([4]), 3)
        S(U([1, 2])), S(U(3)), S(U(np.arange(3))), S(U(True))
        U('x')
        U(None)
        S(U(U(T([4]), [2]))), S(U(U(T([4]), [2]), [5]))
        is_tensor_collection(U(T([2]))), is_non_tensor(U(T([2])))
        U(T([4])).shape, U(T([4])).dtype, U(T([4])).ndim, len(U(T([4])))
        U(T([4])).tolist(), U(torch.tensor(3)).item(), U(T([4])).numpy()
        U(T([4])).item()
        bool(U(torch.tensor(True))), float(U(torch.tensor(2.0)))
        S(U(T([4]), [2]) + 1), S(1 + U(T([4]), [2])), S(U(T([4]), [2]) @ T([4]))
        S(U(T([4]), [2]) + U(T([4]), [3])), S(U(T([4])) + U(T([4]), [3]))
        S(T([4]) + U(T([4]), [3])), S(-U(T([4]), [3])), S(U(T([4]), [3]) > 1)
        S(U(T([4]), [2])[0]), S(U(T([4]), [2])[1:]), S(U(T([4]), [2]).view(2, 2))
        S(U(T([4]), [2]).sum()), S(U(T([2, 3]), [2]).sum(0)), S(U(T([2, 3])).T)
        [S(x) for x in U(T([4]), [2])], [S(x) for x in U(T([4]), [2]).unbind(0)]
        [S(x) for x in torch.split(U(T([4]), [2]), 2)]
        S(U(T([4]), [2]).max(0).values), S(U(T([4]), [2]).max(0).indices)
        S(torch.stack([U(T([4]), [2])] * 2)), S(torch.cat([U(T([4]), [2])] * 2))
        S(torch.where(U(T([4]), [2]) > 1, U(T([4])), 0.0))
        torch.equal(U(T([4])), U(T([4]))), torch.allclose(U(T([4])), U(T([4])))
        S(U(T([4]), [2]).clone()), S(U(T([4]), [2]).copy()), S(U(T([4]), [2]).detach())
        S(U(T([4]), [2]).to(torch.float64)), S(U(T([4]), [2]).new_zeros(3))
        S(torch.zeros_like(U(T([4]), [2]))), S(U(T([4]), [2]).float())
        S(pickle.loads(pickle.dumps(U(T([4]), [2]))))
        x = T([2]); U(x).add_(1); x
        x = T([2]); U(x)[0] = 9; x
        u = U(T([4])); u.batch_size = [5]; u.batch_size
        u = U(T([4])); u.batch_size = 'x'
        U(torch.ones(2, requires_grad=True)).requires_grad
        """,
        on="none",
    ),
    *cases(
        "unbatched entries",
        """
        S(td)
        list(td.keys(True, True)), len(td), td.numel(), td.bytes()
        td['u'] is td['u'], td.get(('n', 'v')).batch_size
        S(td.view(6)), S(td.view(-1)), S(td.reshape(6)), S(td.flatten(0, 1))
        S(td.view(torch.int32))
        S(td.flatten(0, 1).unflatten(0, (3, 2)))
        S(td.transpose(0, 1)), S(td.permute(1, 0)), S(td.unsqueeze(-1))
        S(td[:1].squeeze(0)), S(td[:1, :1].squeeze())
        S(td.expand(4, 3, 2)), S(td.repeat(2, 1)), S(td.repeat_interleave(2, 0))
        [S(x) for x in td.chunk(3)], [S(x) for x in td.split([1, 2])]
        [S(x) for x in td.unbind(1)], [S(x) for x in td.tensor_split(3)]
        S(td[0]), S(td[1:]), S(td[None]), S(td[..., 0]), S(td[[0, 2]])
        S(td[torch.tensor([True, False, True])]), S(td[torch.ones(3, 2).bool()])
        S(td[torch.tensor([0, 0, 1, 2])])
        S(td.gather(0, torch.zeros(1, 2, dtype=torch.long)))
        S(td.masked_select(torch.ones(3, 2).bool()))
        S(td.flip(0)), S(td.roll(1, 0))
        S(torch.stack([td, td], 1)), S(torch.cat([td, td], 1))
        S(torch.stack([td, td * 2]))
        torch.stack([TensorDict(u=U(T([3]))), TensorDict(u=U(T([5])))])
        S(lazy_stack([td, td])), S(lazy_stack([td, td])[0])
        S(lazy_stack([td, td]).view(12)), S(lazy_stack([td, td]).contiguous())
        S(lazy_stack([td, td]).set('w', U(T([5]))))
        S(maybe_dense_stack([td, td])), S(td.to_lazystack(0))
        S(td.sum()), S(td.sum(0)), S(td.sum(0, keepdim=True)), S(td.sum(keepdim=True))
        S(td.sum(dim='feature')), S(td.mean(0)), S(td.std(0)), S(td.var(1))
        S(td.prod(1)), S(td.amin()), S(td.logsumexp(0)), S(td.quantile(0.5, 0))
        S(td.norm())
        S(td.softmax(0))
        S(td + 1), S(td + td), S(td * td), S(-td), S(td == td), S(td < 1), S(td.exp())
        S(td.clamp(0, 1)), S(td.lerp(td, 0.5)), S(td.addcmul(td, td, value=2))
        S(td.clone()), S(td.clone(False)), S(td.copy()), S(td.to_tensordict())
        S(td.to(torch.float64)), S(td.double()), S(td.detach()), S(td.contiguous())
        S(torch.zeros_like(td)), S(torch.ones_like(td)), S(td.new_zeros(2))
        S(td.select('u')), S(td.exclude('a')), S(td.flatten_keys())
        S(td.flatten_keys().unflatten_keys()), S(td.clone().rename_key_('u', 'z'))
        [S(x) for x in td.split_keys(['u'])]
        S(td.apply(lambda x: x + 1)), S(td.named_apply(lambda n, x: x + 1))
        S(td.apply(lambda x: x.sum(), batch_size=[]))
        S(td._fast_apply(lambda x: x[0], batch_size=[2]))
        S(td.apply_(lambda x: x.add_(1)))
        td.zero_(); S(td)
        td.fill_('u', 3.0); S(td)
        td.mul_(2); S(td)
        td['u'].fill_(3.0); S(td)
        td.view(6)['u'].fill_(3.0); S(td)
        td.clone()['u'].fill_(3.0); S(td)
        td[0] = td[1] * 2; S(td)
        td[:1] = td[:1] + 1; S(td)
        td[torch.tensor([True, False, True])] = td[:2] + 1; S(td)
        td[0] = {'u': U(T([4]) * 3)}; S(td)
        td[0] = {'u': T([4])}
        td.set_at_('u', U(T([4]) * 3), 0); S(td)
        td.update_at_(td[0] * 2, 0); S(td)
        td.update(td * 2); S(td)
        td.update_(td * 2); S(td)
        td.update_({'u': T([4]) * 5}); S(td)
        td.update_({'u': T([3, 2])})
        td.update({'u': T([3, 2])}); S(td)
        td.set('u', T([4]))
        td.set('u', T([3, 2])); S(td)
        td.set_('u', U(T([4]) * 3)); S(td)
        td.set('q', U(T([7]), [9])); S(td)
        td.set(('n', 'w'), U(T([7]))); S(td)
        S(TensorDict(batch_size=[3, 2]).update(td))
        S(td.replace(u=T([3, 2])))
        S(td.pop('u'))
        td.is_contiguous(), td.dtype, td.entry_class('u').__name__
        td.requires_grad_()['u'].requires_grad
        S(td.state_dict()['u'])
        S(td.load_state_dict((td * 2).state_dict()))
        S(pickle.loads(pickle.dumps(td)))
        S(torch.vmap(lambda x: x + 1)(td))
        S(torch.utils._pytree.tree_map(lambda x: x * 2, td)['u'])
        td.memmap_()
        td.select('u').memmap()
        td.consolidate()
        S(td['n'].to_dict()['v'])
        assert_close(td, td.clone())
        TensorDictParams(td)['u'].requires_grad
        """,
        on="unbatched",
    ),
    *cases(
        "unbatched entries",
        "td.batch_size = [3]; S(td)",
        on="unbatched",
        reason="the release leaves the old batch size on the entry",
        ours="td['u'].batch_size == torch.Size([3]) and error is None",
    ),
    *cases(
        "unbatched entries",
        "S(td.auto_batch_size_())",
        on="unbatched",
        reason="the release leaves the old batch size on the entry",
        ours="td['u'].batch_size == td.batch_size and error is None",
    ),
    *cases(
        "unbatched entries",
        "S(pad(td, [0, 1, 0, 0]))",
        on="unbatched",
        reason="the release leaves the old batch size on the entry",
        ours="result[2]['u']['batch'] == [4, 2]",
    ),
    *cases(
        "unbatched entries",
        "td[0] = 5.0; S(td)",
        on="unbatched",
        reason="the release takes the index for one of the data",
        ours="(td['u'] == 5).all() and (td['n', 'v'] == 5).all()",
    ),
    *cases(
        "unbatched entries",
        "copy.deepcopy(U(T([4]))).shape",
        on="none",
        reason="a deep copy of the release has no dims, but four values",
        ours="result == torch.Size([4])",
    ),
    *cases(
        "unbatched entries",
        "x = torch.ones(2, requires_grad=True); (U(x) * 2).sum().backward(); x.grad",
        on="none",
        reason="gradients do not reach the data in the release",
        ours="(result == 2).all()",
    ),
    *cases(
        "parts with unbatched entries",
        """
        td._get_sub_tensordict(0).update_({'u': U(td['u'] * 2)}); S(td)
        td._get_sub_tensordict(0).update({'u': U(td['u'] * 2)}); S(td)
        td._get_sub_tensordict(0).set_('u', U(td['u'] * 2)); S(td)
        td._get_sub_tensordict(0).set_(('n', 'v'), U(td['n', 'v'] * 2)); S(td)
        td._get_sub_tensordict(0).update_({'n': {'v': U(td['n', 'v'] * 2)}}); S(td)
        td._get_sub_tensordict(0).update_({('n', 'v'): U(td['n', 'v'] * 2)}); S(td)
        td._get_sub_tensordict(0).update({'n': {'v': U(td['n', 'v'] * 2)}}); S(td)
        td._get_sub_tensordict(0).update_((td * 2)[0]); S(td)
        td._get_sub_tensordict(0).update((td * 2)[0]); S(td)
        td._get_sub_tensordict(slice(0, 2)).copy_((td * 2)[:2]); S(td)
        """,
        on="unbatched",
    ),
    *cases(
        "memmap_like",
        """
        m = TensorDict(u=U(T([3, 2])), a=T([3]), batch_size=[3]).memmap_like(); type(m['u']).__name__, m['u']
        m = TensorDict(u=U(T([2]))).memmap_like(tempfile.mkdtemp()); type(m['u']).__name__, m['u']
        m = TensorDict(n={'u': U(T([3]))}, batch_size=[3]).memmap_like(); type(m['n', 'u']).__name__
        TensorDict(u=U(T([2])), batch_size=[3]).memmap_like()
        TensorDict(u=U(T([2])), batch_size=[3]).memmap()
        """,
        on="none",
    ),
    # Written into a tensor it is a tensor without batch dims.
    *cases(
        "set_",
        """
        td.set_('a', U(T([7])))
        td.set('a', U(T([7])), inplace=True)
        td.update({'a': U(T([7]))}, inplace=True)
        td.set_(('n', 'b'), U(T([7])))
        td.set_('a', U(torch.tensor(4.0))); td['a']
        td.lock_().set_('a', U(torch.tensor([4.0]))); td['a']
        """,
        on="flat nested",
        message=False,
    ),
    *cases(
        "detach_",
        """
        x = TensorDict(u=U(T([4])), a=T([2]), batch_size=[2]); x.detach_() is x, x['u'].requires_grad
        x = TensorDict(u=U(T([4])), a=T([2]), batch_size=[2]).requires_grad_();
            x.detach_()['u'].requires_grad, x['a'].requires_grad
        u = U(T([3])); u.detach_() is u
        u = U(T([3])).requires_grad_(); u.detach_().requires_grad
        """,
        on="none",
    ),
    *cases(
        "set_at_",
        """
        TensorDict(u=U(T([5])), batch_size=[4]).set_at_('u', 1, 7)
        TensorDict(u=U(T([5])), batch_size=[4]).set_at_('u', 1, -6)
        TensorDict(u=U(T([5])), batch_size=[4]).set_at_('u', 1, (slice(None), 0))
        """,
        on="none",
        message=False,
    ),
]
