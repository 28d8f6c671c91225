"""The same elements in another shape; splitting, repeating, moving, padding."""

from frame import EVERY, cases

MORE = EVERY + " half_named nested_subclass single"

CASES = [
    *cases(
        "view",
        """
        td.view(-1)
        td.view(3, 2)
        td.view((6,))
        td.view([3, -1])
        td.view(size=(6,))
        td.view(*td.shape)
        td.view(1, *td.shape)
        """,
        on=MORE,
    ),
    *cases(
        "view",
        """
        td.view(7)
        td.view(-1, -1)
        td.view(-1, 4)
        td.view()
        td.view(6.0)
        td.view('a')
        td.view(0, -1)
        td.permute(1, 0).view(-1)
        td.view(torch.int32)
        td.view(*td.shape) is td
        """,
        on="flat nested zero locked",
    ),
    *cases(
        "reshape",
        """
        td.reshape(-1)
        td.reshape(3, 2)
        td.reshape((6,))
        td.reshape(size=[6])
        td.reshape(*td.shape)
        td.reshape(7)
        td.reshape(shape=(6,))
        """,
        on="flat nested deep empty scalar zero locked named cpu subclass single",
    ),
    *cases("reshape", "td.permute(1, 0).reshape(-1)", on="flat nested deep named"),
    *cases(
        "permute",
        """
        td.permute(1, 0)
        td.permute((1, 0))
        td.permute([-1, 0])
        td.permute(dims=(1, 0))
        td.permute(0, 1)
        td.permute(*range(td.ndim)) is td
        td.permute(0, 0)
        td.permute(1)
        td.permute(0, 1, 2)
        td.permute()
        """,
        on=MORE,
    ),
    *cases(
        "transpose",
        """
        td.transpose(0, 1)
        td.transpose(-1, 0)
        td.transpose(dim0=0, dim1=1)
        td.transpose(0, 0)
        td.transpose(0, 2)
        td.swapaxes(0, 1)
        td.swapdims(-2, -1)
        """,
        on=MORE,
    ),
    *cases(
        "movedim",
        """
        td.movedim(0, 1)
        td.movedim(1, 0)
        td.movedim((0, 1), (1, 0))
        td.movedim(0, 0)
        td.moveaxis(0, -1)
        td.movedim(0, 2)
        td.movedim((0, 0), (0, 1))
        td.movedim((0, 1), (0,))
        """,
        on=EVERY.replace(" scalar", ""),
    ),
    *cases(
        "squeeze",
        """
        td.squeeze(0)
        td.squeeze(-1)
        td.squeeze(dim=0)
        td.squeeze(1)
        td.squeeze(3)
        td.squeeze(-3)
        """,
        on=MORE,
        message=False,
    ),
    *cases(
        "squeeze",
        """
        td.squeeze()
        td.unsqueeze(0).squeeze()
        td.unsqueeze(-1).squeeze()
        """,
        on="flat nested deep empty locked cpu subclass single",
    ),
    *cases(
        "squeeze",
        "td.unsqueeze(0).squeeze()",
        on="named",
        reason="the release drops the names of nested collections only",
        ours="result.names == ['x', 'y'] and result['n'].names == ['x', 'y']",
    ),
    *cases(
        "unsqueeze",
        """
        td.unsqueeze(0)
        td.unsqueeze(1)
        td.unsqueeze(-1)
        td.unsqueeze(-2)
        td.unsqueeze(dim=0)
        td.unsqueeze(3)
        td.unsqueeze(-4)
        td.unsqueeze()
        """,
        on=MORE,
    ),
    *cases(
        "atleast_1d",
        """
        td.atleast_1d()
        td.atleast_2d()
        td.atleast_3d()
        td.atleast_1d() is td
        """,
        on=MORE + " one",
    ),
    *cases(
        "expand",
        """
        td.expand(2, *td.shape)
        td.expand((4, *td.shape))
        td.expand([-1] * td.ndim)
        td.expand([7] * td.ndim)
        td.expand(torch.Size([7] * td.ndim))
        td.broadcast_to((2, *td.shape))
        td.expand_as(torch.zeros(2, *td.shape))
        td.expand_as(td)
        td.expand(7)
        td.expand(7, 7, 7)
        td.expand(3)
        td.broadcast_to(3)
        """,
        on=MORE + " one",
        message=False,
    ),
    *cases("expand", "td.expand(5, 3); td.expand(4, 5, 3)", on="single"),
    *cases(
        "flatten",
        """
        td.flatten()
        td.flatten(0, 1)
        td.flatten(0, -1)
        td.flatten(start_dim=0, end_dim=1)
        td.flatten(1, 1)
        td.flatten(1, 0)
        td.flatten(0, 1, inplace=True)
        """,
        on="flat nested deep empty scalar zero locked named cpu subclass half_named single",
    ),
    *cases(
        "unflatten",
        """
        td.unflatten(0, (1, -1))
        td.unflatten(0, [-1, 1])
        td.unflatten(-1, (1, 3))
        td.unflatten(1, (3, 1))
        td.unflatten(0, (2,))
        td.unflatten(0, (3, 3))
        td.unflatten(2, (1, 1))
        td.unflatten(0, 2)
        td.unflatten(0, (2, 1), inplace=True)
        """,
        on="flat nested deep empty scalar zero locked named cpu subclass half_named",
    ),
    *cases(
        "split",
        """
        td.split(1)
        td.split(2, 1)
        td.split(2, -1)
        td.split([1, 1])
        td.split([1, 2], 1)
        td.split([0, 3], dim=1)
        td.split(10)
        td.split(0)
        td.split(-1)
        td.split(1, 2)
        td.split(1.5)
        td.split('a')
        """,
        on=MORE,
    ),
    *cases(
        "split",
        """
        td.split([1, 1], 1)
        td.split([])
        td.split([-1, 4], 1)
        """,
        on="flat nested deep locked named cpu subclass sub",
    ),
    *cases(
        "chunk",
        """
        td.chunk(2)
        td.chunk(2, 1)
        td.chunk(2, dim=-1)
        td.chunk(7)
        td.chunk(0)
        td.chunk(2, 2)
        td.chunk(1)[0] is td
        """,
        on=MORE,
    ),
    *cases(
        "tensor_split",
        """
        td.tensor_split(2)
        td.tensor_split(2, 1)
        td.tensor_split([1], 1)
        td.tensor_split((1, 2), dim=-1)
        td.tensor_split([2, 1], 1)
        td.tensor_split(torch.tensor([1, 2]), 1)
        td.tensor_split(torch.tensor(2))
        td.tensor_split(5, 1)
        td.tensor_split(0)
        td.tensor_split(2, 2)
        """,
        on=MORE,
    ),
    *cases("tensor_split", "td.tensor_split('a')", on="flat sub"),
    *cases(
        "unbind",
        """
        td.unbind(0)
        td.unbind(1)
        td.unbind(-1)
        td.unbind(dim=0)
        td.unbind(2)
        td.unbind()
        list(td)
        """,
        on=MORE,
    ),
    *cases(
        "narrow",
        """
        td.narrow(0, 0, 1)
        td.narrow(-1, 1, 2)
        td.narrow(1, -1, 1)
        td.narrow(dim=1, start=0, length=0)
        td.narrow(2, 0, 1)
        """,
        on=MORE,
        message=False,
    ),
    *cases(
        "narrow",
        """
        td.narrow(1, 0, 9)
        td.narrow(1, 9, 1)
        td.narrow(1, 0, -1)
        """,
        on="flat nested deep locked named sub",
        message=False,
    ),
    *cases(
        "narrow",
        "td.narrow(1, 0, 9)",
        on="empty",
        reason="the release checks the leaves, of which there are none",
        ours="isinstance(error, RuntimeError)",
    ),
    *cases(
        "repeat",
        """
        td.repeat(2, 1)
        td.repeat((1, 2))
        td.repeat([1, 0])
        td.repeat(2)
        td.repeat(1, 1)
        td.repeat(2, 1, 1)
        td.tile((2, 1))
        td.tile((2,))
        td.tile(2)
        td.tile((2, 1, 1))
        td.tile(())
        """,
        on="flat nested deep empty scalar zero locked named cpu subclass one half_named",
        message=False,
    ),
    *cases("repeat", "td.repeat(2, 1, inplace=True)", on="flat nested locked named"),
    *cases(
        "repeat_interleave",
        """
        td.repeat_interleave(2)
        td.repeat_interleave(2, 0)
        td.repeat_interleave(2, dim=-1)
        td.repeat_interleave(0, dim=0)
        td.repeat_interleave(torch.tensor([1, 2]), dim=0)
        td.repeat_interleave(torch.tensor([2]), dim=0)
        td.repeat_interleave(torch.tensor([1, 2]), dim=0, output_size=3)
        td.repeat_interleave(torch.tensor([1, 2, 3, 4, 5]), dim=0)
        td.repeat_interleave(2, dim=2)
        td.repeat_interleave(2, dim=-3)
        td.repeat_interleave(-1, dim=0)
        """,
        on="flat nested deep locked named cpu subclass one half_named",
        message=False,
    ),
    *cases(
        "roll",
        """
        td.roll(1)
        td.roll(1, 0)
        td.roll(-1, -1)
        td.roll((1, 1), (0, 1))
        td.roll(shifts=1, dims=1)
        td.roll(1, 2)
        """,
        on="flat nested deep empty scalar zero locked named cpu subclass one half_named",
    ),
    *cases(
        "roll",
        """
        td.roll((1, 2), 0)
        td.roll((1, 1))
        td.roll('a')
        """,
        on="flat nested deep locked",
    ),
    *cases("roll", "td.roll(1, 0, inplace=True)", on="flat nested locked named"),
    *cases(
        "flip",
        """
        td.flip(0)
        td.flip((0, 1))
        td.flip([-1])
        td.flip(())
        td.flip(2)
        td.flip(None)
        td.fliplr()
        td.flipud()
        td.rot90()
        td.rot90(2)
        td.rot90(-1, (1, 0))
        td.rot90(4)
        """,
        on="flat nested deep empty scalar locked named cpu subclass one half_named sub",
        message=False,
    ),
    *cases(
        "flip",
        """
        td.flip((0, 0))
        td.rot90(1, (0, 0))
        td.repeat(-1, 1)
        """,
        on="flat nested locked",
        message=False,
    ),
    *cases(
        "pad",
        """
        td.pad([0, 1])
        td.pad([1, 1], value=2.0)
        td.pad([0, 1, 1, 0])
        td.pad([0, -1])
        td.pad([1])
        td.pad([0, 1, 0, 1, 0, 1])
        td.pad([])
        """,
        on="flat nested deep locked named cpu subclass one half_named sub",
    ),
    *cases("pad", "td.pad([0, 1], inplace=True)", on="flat nested locked"),
    *cases(
        "contiguous",
        """
        td.contiguous()
        td.contiguous(canonical=True)
        td.densify()
        td.to_padded_tensor()
        td.to_padded_tensor(mask_key='m')
        td.is_contiguous()
        td.contiguous(True)
        """,
        on=EVERY,
    ),
    *cases(
        "contiguous",
        """
        td.permute(1, 0).contiguous()
        td.permute(1, 0).is_contiguous()
        td.contiguous(inplace=True)
        """,
        on="flat nested deep locked named",
    ),
    *cases(
        "pack",
        """
        td.pack()[0]
        td.pack(0)[0]
        td.pack(-2)[0]
        td.pack()[1].unpack(td.pack()[0])
        td.pack()[1].unpack(td.pack()[0] * 2)
        td.pack(0)[1].unpack(td.pack(0)[0])
        td.pack(layout=td.pack()[1])[0]
        (td.pack()[1].keys, td.pack()[1].shapes, td.pack()[1].dim, td.pack()[1].offsets)
        td.pack()[1] == td.clone().pack()[1]
        """,
        on="floats deep named locked one zero sub",
    ),
    *cases("pack", "td.pack()", on="mixed nested", message=False),
    *cases(
        "with",
        """
        with td.view(-1) as v: v['z'] = T([v.numel()])
        with td.reshape(1, *td.shape) as v: v['z'] = T(list(v.shape))
        with td.permute(1, 0) as v: v['a'] = v['a'] + 1
        with td.transpose(0, 1) as v: v['z'] = T(list(v.shape))
        with td.unsqueeze(0) as v: v['z'] = T(list(v.shape))
        with td.squeeze() as v: v['z'] = T(list(v.shape))
        with td.flatten(0, 1) as v: v['z'] = T(list(v.shape))
        with td.unflatten(0, (-1, 1)) as v: v['z'] = T(list(v.shape))
        with td.view(*td.shape) as v: v['z'] = T(list(v.shape))
        """,
        on="flat nested deep named locked single",
        message=False,
    ),
]

SPLIT = "the release gives the name of a dim that is split to the last of the new ones"
CASES += cases(
    "unflatten",
    """
    td.unflatten(0, [-1, 1])
    td.unflatten(0, (2, 1), inplace=True)
    """,
    on="named half_named",
    reason=SPLIT,
    ours="result.names[:2] == ['x', None] == result['n'].names[:2]",
)
CASES += cases(
    "unflatten",
    "td.unflatten(1, (3, 1))",
    on="named",
    reason=SPLIT,
    ours="result.names == ['x', 'y', None] == result['n'].names[:3]",
)
