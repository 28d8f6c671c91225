"""Tables of Apache Arrow: ``from_arrow`` and ``to_arrow``."""

from frame import Case

READ = """import pyarrow as pa
from tensordict import from_arrow
def F(values, type=None, **kwargs): return from_arrow(pa.table({"a": pa.array(values, type=type)}), **kwargs)
"""  # noqa: E501
WRITE = """import pyarrow as pa
from tensordict import LazyStackedTensorDict, NonTensorStack, from_arrow, tensorclass, to_arrow
def W(value, bs=2): t=to_arrow(TensorDict({"a": value}, batch_size=[bs])); \
return str(t.schema), t.column("a").to_pylist()
"""  # noqa: E501

CASES = [
    *(
        Case("from_arrow", "none", READ + program.strip())
        for program in """
F([1,0,1],pa.int8())
F([1,0,1],pa.uint8())
F([1,0,1],pa.int32())
F([1.,0.],pa.float32())
F([True,False])
F([1,None,3])
F([1,None,3],nulls="fill")
F([1.,None],nulls="fill")
F([True,None],nulls="mask")
F([1,None,3],nulls="mask")
F([1,None,3],nulls="mask",mask_key="m")
F([1,None,3],nulls="mask",mask_key=("m","k"))
F([1,2],nulls="mask")
F([1,2],nulls="mask",mask_key="a")
F([1,None],nulls="mask",mask_key=("a","b"))
F([1,None],nulls="mask",mask_key=3)
F([1,None],nulls="fill",mask_key="m")
F([1],nulls="x")
F(["x",None])
F([["x",None],["y"]])
F([["x",None],["y"]],nulls="fill")["a"]
F([[[1],[None]]])
F([[[1],None]])
F([[{"x":None}]])
F([["x",None]],pa.list_(pa.string(),2))
F([[("k",1)]],pa.map_(pa.string(),pa.int64()))["a"]
F(["x",None],nulls="fill")
F(["x",None],nulls="mask")
F([b"x",b"y"])
F([{"x":1,"y":2.},{"x":3,"y":4.}])
F([{"x":1},None])
F([{"x":1},None],nulls="mask")
F([{"x":{"y":1}}])
F([{}])
F([[1,2],[3]])["a"].unbind()
F([[1,2],None])
F([[1,2],None],nulls="fill")["a"].unbind()
F([[1,None],[3]],nulls="mask")["a"].unbind()
F([[1,None],[3]],nulls="mask").keys()
F([[1,None],[3]])
F([[1,2],[3,4]],pa.list_(pa.int64(),2))
F([[1,2],None],pa.list_(pa.int64(),2))
F([[1.,2.],None],pa.list_(pa.float64(),2),nulls="fill")["a"].isnan()
F([[1,2],None],pa.list_(pa.int64(),2),nulls="mask")
F([[[1,2],[3,4]]]*2,pa.list_(pa.list_(pa.int64(),2),2))
F([[[1],[2,3]],[[4]]])["a"]
F([["x","y"],["z"]])["a"]
F([None,None],nulls="fill")["a"]
F([],pa.int64())
F([],pa.string()).batch_size
F([1,2],device="cpu")
from_arrow(pa.table({"a":pa.chunked_array([[1,2],[3]])}))
from_arrow(pa.table({"a":pa.chunked_array([["x"],["y","z"]])}))["a"]
from_arrow(pa.table({"a":pa.array(["x","y","x"]).dictionary_encode()}))["a"]
from_arrow(pa.table({"a":[1,2,3]}).to_batches()[0])
from_arrow(pa.table({"a":[1,2,3]}).to_reader())
from_arrow({"a":[1]})
from_arrow(5)
from_arrow(pa.table({}))
from_arrow(pa.table({"a.b":[1],"a":[2]}))
from_arrow(pa.table({"a":list(range(10)),"f":pa.array([[i,i] for i in range(10)],pa.list_(pa.int64(),2))}).slice(3,2))
""".strip().splitlines()  # noqa: E501
    ),
    *(
        Case("to_arrow", "none", WRITE + program.strip())
        for program in """
W(torch.ones(2,dtype=torch.int8))
W(torch.ones(2,dtype=torch.half))
W(torch.ones(2,dtype=torch.bool))
W(torch.ones(2,dtype=torch.complex64))
W(torch.ones(2,dtype=torch.bfloat16))
W(torch.ones(2,3))
W(torch.ones(2,3,2))
W(torch.ones(2,3,dtype=torch.bool))
W(torch.arange(6.).view(3,2).t())
W(torch.ones(2,requires_grad=True))
W(torch.nested.nested_tensor([torch.ones(2),torch.ones(3)],layout=torch.jagged))
W(torch.nested.nested_tensor([torch.ones(2,2),torch.ones(3,2)],layout=torch.jagged))
W(torch.nested.as_nested_tensor([torch.ones(2,2),torch.ones(3,2)],layout=torch.jagged).transpose(1,2))
W(torch.nested.nested_tensor([torch.ones(2),torch.ones(3)]))
W(["x","y"])
W("x")
W(NonTensorStack(1,2))
W(NonTensorStack({"q":1},{"q":2}))
W(NonTensorStack(None,"x"))
W(TensorDict(x=torch.ones(2),batch_size=[2]))
W(TensorDict(x=torch.ones(2,3),batch_size=[2,3]))
W(TensorDict(batch_size=[2]))
W(TensorDict(x=torch.ones(2)))
W(torch.ones(0),0)
to_arrow(TensorDict(a=1))
to_arrow(TensorDict(a=torch.ones(2,3),batch_size=[2,3]))
to_arrow(TensorDict(batch_size=[2])).num_columns
to_arrow(TensorDict({"a.b":torch.ones(2),"a":{"b":torch.zeros(2)}},batch_size=[2])).to_pydict()
to_arrow(LazyStackedTensorDict(TensorDict(x=torch.ones(2)),TensorDict(x=torch.ones(2)))).column("x").to_pylist()
to_arrow(LazyStackedTensorDict(TensorDict(x=torch.ones(2)),TensorDict(x=torch.ones(3))))
from_arrow(to_arrow(TensorDict(a=torch.arange(3),n={"x":torch.ones(3,2)},s=["a","b","c"],batch_size=[3],names=["t"]).lock_()))
""".strip().splitlines()  # noqa: E501
    ),
]

HELPERS = (WRITE, READ)
"""The beginnings of programs: answers go by what follows them."""
