"""Arguments of what saves and loads, one after the other, and what they refuse."""

from frame import cases

D = "d = tempfile.mkdtemp() + '/x'; "
M = f"{D}m = td.memmap_(d); "
V = (
    "v = TensorDict({'i': NonTensorData(5, batch_size=[2]), 'd': NonTensorData({1: 2}, batch_size=[2]), "
    "'l': NonTensorData([1, 2], batch_size=[2]), 't': NonTensorData(('a',), batch_size=[2]), "
    "'s': NonTensorStack('x', 'y')}, [2]); "
)
C = "c = Data(T([2, 3]), n=Inner(z=T([2]), batch_size=[2]), batch_size=[2]); "

CASES = [
    *cases(
        "memmap",
        f"""
        {D}td.memmap(d, num_threads=-1)
        {D}td.memmap(d, num_threads='2')
        {D}td.memmap(d, robust_key=None)
        {D}td.memmap(d, nonsense=1)
        {D}td.memmap(d, False, 2)
        {D}td.memmap(5)
        {D}td.memmap(b'x')
        {D}td.memmap(d, return_early=True).is_memmap()
        {D}td.memmap(d, share_non_tensor=True)
        {D}td.memmap_(d); td.memmap_(d, existsok=False) is td
        {D}td.memmap(d + '.tdz', compression='nonsense')
        {D}td.memmap(d + '.tdz', compression=8)
        {D}td.memmap(d + '.tdz', archive=False)
        td.memmap(archive=True)
        {D}open(d, 'w').write('x'); td.memmap(d)
    """,
        on="flat nested",
        ordered=False,
    ),
    *cases(
        "load_memmap",
        f"""
        {D}td.memmap(d); load_memmap(d, mode=5)
        {D}td.memmap(d); load_memmap(d, subpath=())
        {D}td.memmap(d); load_memmap(d, subpath=5)
        {D}td.memmap(d); load_memmap(d, subpath=['n', 'm'])
        {D}td.memmap(d); load_memmap(d, subpath='')
        {D}td.memmap(d); load_memmap(d, device='nonsense')
        {D}td.memmap(d); load_memmap(d, nonsense=1)
        {D}td.memmap(d); load_memmap(d, 'cpu', True)
        load_memmap()
    """,
        on="flat nested",
        ordered=False,
    ),
    *cases(
        "load_memmap",
        f"""
        {D}{C}c.memmap(d); load_memmap(d, subpath='n')
        {D}{C}c.memmap(d); load_memmap(d, subpath=('n',))
        {D}{C}TensorDict(c=c, batch_size=[2]).memmap(d); load_memmap(d, subpath=('c', 'n'))
        {D}{C}TensorDict(c=c, batch_size=[2]).memmap(d); load_memmap(d, subpath='c/n')
    """,
        on="none",
        ordered=False,
    ),
    *cases(
        "make_memmap",
        f"""
        {M}m.make_memmap(5, td.shape)
        {M}m.make_memmap('z', td.shape, dtype='int16')
        {M}m.make_memmap('z', torch.tensor(td.shape)).shape
        {M}m.make_memmap('z', list(td.shape)).shape
        {M}m.make_memmap('z', td.shape, nonsense=1)
        {M}m.make_memmap_from_tensor('z', 5)
        {M}m.make_memmap_from_storage('z', T([4]).untyped_storage(), (7,))
    """,
        on="flat nested",
        ordered=False,
    ),
    *cases(
        "MemoryMappedTensor",
        f"""
        MemoryMappedTensor.zeros((2, 3), dtype='int16')
        {D}x = MemoryMappedTensor.from_tensor(T([2, 3]), filename=d);
            MemoryMappedTensor.from_filename(d, 'float32', (2, 3))
        {D}x = MemoryMappedTensor.from_tensor(T([2, 3]), filename=d); MemoryMappedTensor.from_filename(d, None, (2, 3))
        {D}x = MemoryMappedTensor.from_tensor(T([2, 3]), filename=d);
            MemoryMappedTensor.from_filename(d, torch.float32, (2, 3), index=5)
        MemoryMappedTensor.ones_like(np.zeros(3))
    """,
        on="none",
    ),
    *cases(
        "load_state_dict",
        f"""
        {V}v.clone().load_state_dict(v.state_dict(), assign=True)
        {V}v.clone().load_state_dict(v.state_dict(flatten=False), assign=True)
        {V}c = v.clone(); c.set_non_tensor('i', 6); c.load_state_dict(v.state_dict(), assign=True)
        {V}c = v.clone(); o = c.copy(); c.set_non_tensor('i', 6); c.load_state_dict(v.state_dict(), assign=True); o
    """,
        on="none",
    ),
    *cases(
        "consolidate",
        "td.consolidate(num_threads='x')\ntd.consolidate(nonsense=1)\ntd.consolidate(filename=5)",
        on="flat nested",
    ),
    *cases(
        "pack_memmap",
        f"""
        {D}td.memmap(d); pack_memmap(d, d + '.tdz', compression='deflate', compresslevel=9).name
        {D}td.memmap(d); pack_memmap(d, d + '.tdz', compression='nonsense')
        {D}td.memmap(d); unpack_memmap(pack_memmap(d, d + '.tdz'), d)
        {D}td.memmap(d); is_memmap_archive(d), is_memmap_archive(pack_memmap(d, d + '.bin')), is_memmap_archive(d + 'q')
    """,
        on="flat nested",
    ),
    *cases(
        "pack_memmap",
        f"{D}td.memmap(d); pack_memmap(d, d + '.tdz', compression='deflate', compresslevel=99)",
        on="flat",
        reason="the message of the release speaks of the open handle that its error leaves",
        ours="isinstance(error, ValueError) and 'compresslevel' in str(error)",
    ),
    *cases(
        "MemoryMappedTensor",
        f"""
        MemoryMappedTensor.empty((2, -1))
        {D}MemoryMappedTensor.zeros((2, -1), filename=d)
        {D}TensorDict(a=T([2]), batch_size=[2]).memmap_(d).make_memmap('z', (2, -1))
    """,
        on="none",
        reason="the release speaks of an overflow",
        ours="isinstance(error, RuntimeError) and 'not the shape of a tensor' in str(error)",
    ),
]

HELPERS = (V, M, D)
"""The beginnings of programs: answers go by what follows them."""
