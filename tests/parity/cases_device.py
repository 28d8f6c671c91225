"""Devices and dtypes."""

from frame import EVERY, SOME, cases

CASTS = (
    "bool float double half bfloat16 float16 float32 float64 int int8 int16 int32 int64 "
    "uint8 uint16 uint32 uint64 complex64 complex128"
).split()

CASES = [
    *(
        case
        for name in CASTS
        for case in [
            *cases(name, f"td.{name}()", on="mixed locked named sub empty"),
            *cases(
                name,
                f"td.{name}(cast_filter=lambda path, leaf: path == ('a',))",
                on="mixed named",
            ),
        ]
    ),
    *cases("float", "td.float()['a'] is td['a']\ntd.float() is td", on=SOME),
    *cases(
        "type",
        """
        td.type(torch.float64)
        td.type(torch.float64, cast_filter=lambda path, leaf: leaf.dim() == 2)
        td.type()
        """,
        on="flat mixed named sub locked",
        message=False,
    ),
    *cases("dtype", "td.dtype", on="flat floats mixed empty"),
    *cases("is_floating_point", "td.is_floating_point()", on="flat floats empty"),
    *cases("is_cpu", "td.is_cpu, td.is_cuda, td.is_meta", on="flat cpu meta"),
    *cases("device", "td.device", on=EVERY + " meta"),
    *cases("device", "td.device = 'cpu'", on="flat cpu"),
    *cases(
        "to",
        """
        td.to('cpu')
        td.to('meta')
        td.to(torch.device('meta'))
        td.to(device='meta')
        td.to(torch.float64)
        td.to(dtype=torch.float64)
        td.to('meta', torch.float64)
        td.to('cpu', torch.float64)
        td.to('cpu', torch.float64, True)
        td.to('cpu', non_blocking=True)
        td.to(None)
        td.to()
        td.to(T([1], 'float64'))
        td.to(torch.empty(1, device='meta'))
        td.to(other=TensorDict(device='meta'))
        td.to(other=TensorDict())
        td.to('cpu', memory_format=torch.contiguous_format)
        td.to('nowhere')
        td.to(torch.float64, 'meta')
        td.to('cpu', copy=True)
        td.to(torch.Size([2]))
        td.to('cpu', foo=1)
        td.to('cpu') is td
        td.to(torch.float32) is td
        td.to() is td
        td.to('cpu')['a'] is td['a']
        td.cpu()
        td.cpu() is td
        """,
        on="flat nested locked named cpu subclass sub empty",
        message=False,
    ),
    *cases(
        "to",
        """
        td.to('cpu', inplace=True)
        td.to('meta', inplace=True)
        td.to(torch.float64, inplace=True)
        td.to(torch.float64, inplace=True) is td
        """,
        on="flat nested locked cpu",
        message=False,
    ),
    *cases(
        "to",
        """
        td.to(batch_size=[])
        td.to('meta', batch_size=[2])
        td.to(batch_size=[7])
        """,
        on="flat nested named",
        warned=True,
        message=False,
    ),
    *cases("clear_device_", "td.clear_device_()", on="flat cpu locked"),
    *cases("clear_device_", "td.clear_device_(); td['n'].device", on="cpu"),
    *cases("auto_device_", "td.auto_device_()", on="flat nested locked cpu empty meta"),
    *cases(
        "auto_device_",
        "TensorDict(a=T([2]), b=T([2]).to('meta')).auto_device_()",
        on="none",
    ),
    *cases(
        "bytes",
        "td.bytes()\ntd.bytes(count_duplicates=False)\ntd.bytes(False)",
        on="flat mixed empty meta",
        message=False,
    ),
    *cases(
        "bytes",
        "t = T([3]); x = TensorDict(a=t, b=t); x.bytes(), x.bytes(count_duplicates=False)",
        on="none",
    ),
    *cases("as_tensor", "td.as_tensor()", on="flat locked named"),
    *cases("_sync_all", "td._sync_all()", on="flat"),
    *cases("record_stream", "td.record_stream(None)", on="flat empty", message=False),
    *cases("pin_memory", "td.pin_memory()", on="empty"),
    *cases("pin_memory_", "td.pin_memory_()", on="empty", warned=True),
    *cases(
        "qint8",
        "td.qint8()\ntd.quint8()\ntd.qint32()\ntd.quint4x2()",
        on="floats",
        warned=True,
        message=False,
    ),
    *cases(
        "to",
        """
        r = td.to(TensorDict({}, [])); r.named_apply(lambda n, x: x + 1, inplace=True); td
        td.lock_(); td.to(TensorDict({}, [])).is_locked
        r = td.to(torch.float64); r.named_apply(lambda n, x: x + 1, inplace=True); td
    """,
        on="sub",
    ),
]
