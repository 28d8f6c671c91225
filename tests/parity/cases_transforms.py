"""Programs of modules, distributions, parameters and transformed functions.

Longer than a line, most of them: a program is a paragraph.
"""

from frame import Case, differing

SETUP = "from nn_setup import *\ntorch.manual_seed(0)\n"


def programs(method: str, text: str) -> list[Case]:
    """A case for each paragraph."""
    paragraphs = text.strip().split("\n\n")
    return [Case(method, "none", SETUP + program) for program in paragraphs]


ACCEPTED = [
    (
        'torch.func.jacrev(lambda td: td["a"]**2)(TensorDict(a=torch.arange(2.),batch_size=[2]))',
        "the dim of the output is a batch dim of the release, too, unless it is as long as that of the input",
        "tuple(result.batch_size) == (2, 2)",
    ),
    (
        'torch.func.hessian(lambda td: (td["a"]**3).sum())(TensorDict(a=torch.arange(2.),batch_size=[2]))',
        "the release fails in its tree of tangents",
        "result['a', 'a'].tolist() == [[0, 0], [0, 6]]",
    ),
    (
        's=lazy_stack([TensorDict(a=torch.arange(2.))]*3); torch.func.jacrev(lambda td: td["a"].sum(0)*2)(s)["a"].shape',
        "the dims of the output are in front, as in the Jacobian of a tensor",
        "tuple(result) == (2, 3, 2)",
    ),
    (
        's=lazy_stack([TensorDict(a=torch.arange(2.))]*3); torch.func.hessian(lambda td: (td["a"]**2).sum())(s)["a"]["a"].shape',
        "the release fails in its tree of tangents",
        "tuple(result) == (3, 2, 3, 2)",
    ),
    (
        "td=TensorDict(a=torch.ones(3),u=UnbatchedTensor(torch.ones(2)),batch_size=[3]); torch.func.jvp(lambda td: td*2,(td,),(td,))",
        "the release forgets the batch size",
        "result[1].batch_size == (3,) and result[1]['u'].tolist() == [2, 2]",
    ),
    (
        'td=TensorDict(a=torch.ones(3),u=UnbatchedTensor(torch.ones(2)),batch_size=[3]); torch.func.grad(lambda td: (td["a"].sum()*td["u"]).sum())(td)',
        "the release forgets the batch size",
        "result.batch_size == (3,) and result['u'].tolist() == [3, 3]",
    ),
    (
        "m=nn.Linear(2,2); p=TensorDict(weight=torch.zeros(3,3),bias=torch.zeros(2))\nwith p.to_module(m): r=m.weight.shape\nr",
        "the release makes a module of tensors that do not fit it",
        "isinstance(error, RuntimeError) and 'weight [3, 3] in place of [2, 2]' in str(error)",
    ),
]
"""Programs with a reason why our answer is another one, and what is true of that."""

CASES = [
    *programs(
        "modules",
        """
m=M(lambda x:x,in_keys=[("a","b"),"c"],out_keys=["d"])
m.in_keys,m.out_keys

m=M(lambda x,y:x+y,in_keys=["a","b"],out_keys=["c"])
m(TensorDict(a=1,b=2))

m=M(lambda x,*,y:x+y,in_keys={"x":"a","y":"b"},out_keys=["c"])
m(TensorDict(a=1,b=2))

m=M(lambda x,y:x+y,in_keys={"a":"x","b":"y"},out_keys=["c"],out_to_in_map=False)
m(TensorDict(a=1,b=2))

m=M(lambda x,y:x+y,in_keys={"a":"x","b":"y"},out_keys=["c"],out_to_in_map=True)
m(TensorDict(a=1,b=2))

m=M(lambda x:x.mean(),in_keys=["a"],out_keys=["m"],get_kwargs={"as_padded_tensor":True,"padding_value":0.})
s=LazyStackedTensorDict(TensorDict(a=torch.ones(3)),TensorDict(a=torch.ones(2)))
m(s)

m=M(lambda x:len(x),in_keys=["a"],out_keys=["m"],get_kwargs={"as_list":True})
s=LazyStackedTensorDict(TensorDict(a=torch.ones(3)),TensorDict(a=torch.ones(2)))
m(s)

class L(nn.Module):
    def __init__(self): super().__init__(); self.l=nn.LSTM(3,4,batch_first=True)
    def forward(self,x): o,(h,c)=self.l(x); return o,h.transpose(0,1),c.transpose(0,1)
torch.manual_seed(0); m=M(L(),in_keys=["x"],out_keys=["o",("s","h"),("s","c")])
m(TensorDict(x=torch.ones(2,5,3),batch_size=[2]))

m=M(nn.Linear(3,4),["a"],["b"])
m(torch.ones(2,3)).shape, m(a=torch.ones(2,3)).shape

m=M(lambda x:(x,x),["a"],["b","c"])
m(torch.ones(1))

m=M(lambda x:(x,x),["a"],["b","_"])
m(torch.ones(1))

m=M(nn.Linear(3,4),["a"],["b"])
m(TensorDict(b=torch.ones(3)))

m=M(nn.Linear(3,4),["a"],["b"],strict=True)
m(TensorDict(b=torch.ones(3)))

m=M(nn.Linear(3,4),[("n","a")],["b"],strict=True)
m(TensorDict(b=torch.ones(3)))

m=M(lambda x: x if x is not None else torch.zeros(1),["a"],["b"])
m(TensorDict(c=torch.ones(3)))

m=M(lambda x: 1/0,["a"],["b"])
m(TensorDict(a=torch.ones(3)))

m=M(nn.Linear(3,4),["a"],["b"])
m(TensorDict(a=torch.ones(3)),TensorDict())

m=M(nn.Linear(3,4),["a"],["b"]); o=TensorDict()
m(TensorDict(a=torch.ones(3)),tensordict_out=o) is o, o

class A(nn.Module):
    def foo(self,x,k=1): return x+k
m=M(A(),["a"],["b"],method="foo",method_kwargs={"k":5})
m(TensorDict(a=1))

class A(nn.Module):
    def foo(self,x,k=1): return x+k
m=M(A(),["a"],["b"],method="bar")
m(TensorDict(a=1))

m=M(lambda x,k=1: x+k,["a"],["b"])
m(TensorDict(a=1),k=5)

m=M(nn.Linear(3,4),["a"],["b"],inplace="yes")

m=M(nn.Linear(3,4),"a","b")
m.in_keys,m.out_keys

m=M(nn.Linear(3,4),("a","b"),("c","d"))
m.in_keys,m.out_keys

m=M(nn.Linear(3,4),[("a","b")],[("c",("d",))])
m.in_keys,m.out_keys

m=M(nn.Linear(3,4),1,["b"])

m=M(nn.Linear(3,4),["a"],1)

m=M(nn.Linear,["a"],["b"])

m=M(nn.Linear(3,4),["a",1],["b"])

m=M(nn.Linear(3,4),["a"],["b"])
list(m.named_parameters())[0][0], m.module is m.module, hasattr(m,"nope"), m.weight is m.module.weight

m=M(nn.Linear(3,4),["a"],["b"]); m.nope

m=M(nn.Linear(3,4),["a"],["b"]); m.register_forward_hook(lambda mod,i,o: o.set("h",torch.ones(1)))
m(TensorDict(a=torch.ones(3)))

m=M(nn.Linear(3,4),["a"],["b"]); m.register_forward_pre_hook(lambda mod,i: (i[0].set("a",torch.zeros(3)),))
m(TensorDict(a=torch.ones(3)))

m=M(lambda x:x,["a"],["b"]).select_out_keys("b")
m.out_keys, m.out_keys_source

m=M(lambda x:(x,x+1,x+2),["a"],["b","c",("n","d")]).select_out_keys(("n","d"),"b")
m(TensorDict(a=1)), m.out_keys

m=M(lambda x:(x,x+1,x+2),["a"],["b",("n","c"),("n","m","d")]).select_out_keys("b")
m(TensorDict(a=1)).keys(True), m(TensorDict(a=1,n={"e":2})).keys(True), m(TensorDict(a=1,n={})).keys(True)

m=M(lambda x:(x,x+1,x+2),["a"],["b","c",("n","d")]); m.select_out_keys("b"); m.reset_out_keys()
m(TensorDict(a=1)), m.out_keys

m=M(lambda x:(x,x+1,x+2),["a"],["b","c",("n","d")]); m.select_out_keys("z")

m=M(lambda x: TensorDict(u=x,v=x+1),["a"],["n"])
m(TensorDict(a=1))

m=M(lambda x: TensorDict(u=x,v=x+1),["a"],["u","v"])
m(TensorDict(a=1))

m=M(lambda x: {"u":x,"v":x+1},["a"],["u"])
m(TensorDict(a=1))

m=M(lambda x: {"u":x,"v":x+1},["a"],["z"])
m(TensorDict(a=1))

m=M(lambda s: s.upper(),["s"],["t"])
m(TensorDict(s="hello"))["t"]

m=M(lambda s: [x.upper() for x in s],["s"],["t"])
m(TensorDict(s=["hello","you"],batch_size=[2]))["t"]

m=M(lambda x: "out",["a"],["t"]); td=m(TensorDict(a=1))
td, td["t"]

m=M(lambda x: x,["a"],["b"],inplace=False)
m(TensorDict(a=torch.ones(3),batch_size=[3]))

m=M(lambda x: x,["a"],["b"],inplace="empty")
m(TensorDict(a=torch.ones(3),batch_size=[3]))

@tensorclass
class C:
    a: torch.Tensor
    b: torch.Tensor = None
m=M(lambda x: x+1,["a"],["b"])
m(C(torch.ones(3),batch_size=[3]))

@tensorclass
class C:
    a: torch.Tensor
m=M(lambda x: x+1,["a"],["b"])
m(C(torch.ones(3),batch_size=[3]))

m=M(lambda x: x+1,["a"],["b"])
m(LazyStackedTensorDict(TensorDict(a=torch.ones(3)),TensorDict(a=torch.zeros(3))))

m=M(lambda x: x+1,["a"],["b"])
m(TensorDict(a=torch.ones(3),batch_size=[3]).lock_())

m=M(lambda x: x+1,["a"],["a"])
m(TensorDict(a=torch.ones(3),batch_size=[3]).lock_())

m=M(lambda x: x.sum(),["a"],["b"])
m(TensorDict(a=torch.ones(3),batch_size=[3]))

import copy; m=M(nn.Linear(2,2),["a"],["b"]); m2=copy.deepcopy(m)
m2.weight is m.weight, (m2.weight==m.weight).all(), m2.in_keys

m=M(nn.Linear(2,2),["a"],["b"])
sorted(m.state_dict()), m.load_state_dict(m.state_dict())

m=M(nn.Linear(2,2),["a"],["b"]); m.in_keys=["c"]; m.out_keys=["d","e"]
m.in_keys,m.out_keys,m.out_keys_source

m=M(nn.Linear(2,2),["a"],["b"]).to(torch.float64)
m(TensorDict(a=torch.ones(2,dtype=torch.float64)))["b"].dtype

m=M(nn.Linear(2,2),["a"],["b"])
m.device

m=M(nn.Linear(2,2),["a"],["b"])
m.is_functional

m=M(nn.Linear(2,2),["a"],["b"])
m.__name__ if hasattr(m,"__name__") else None

m=M(nn.Linear(2,2),["a"],["b"])
m({"a":torch.ones(2)})

m=M(nn.LazyLinear(2),["a"],["b"])
m(TensorDict(a=torch.ones(4)))["b"].shape, m.weight.shape

m=M(torch.add,["a","b"],["c"])
m(TensorDict(a=1,b=2),alpha=3)

m=M(lambda: torch.ones(2),[],["c"])
m(TensorDict())

m=M(lambda: torch.ones(2),[],["c"])
m()

m=M(lambda x:x,["a"],["a","a"])
m.out_keys

class Base(MB):
    def __init__(self): self.in_keys=["a"]; self.out_keys=["b"]; super().__init__()
    def forward(self,td): return td.set("b",td["a"]+1)
Base()(TensorDict(a=1))

class Base(MB):
    in_keys=["a"]
    out_keys=["b"]
    def forward(self,td): return td.set("b",td["a"]+1)
b=Base()
b(TensorDict(a=1)), b.in_keys, Base.in_keys if isinstance(Base.in_keys,list) else type(Base.in_keys).__name__

class Base(MB):
    def forward(self,td): return td
Base().in_keys

class Base(MB):
    in_keys=["a"]
    out_keys=["b","c"]
    def forward(self,td): return td.set("b",td["a"]+1).set("c",td["a"])
b=Base().select_out_keys("c")
b(TensorDict(a=1)), b.out_keys, Base().out_keys

class Base(MB):
    in_keys=["a"]
    out_keys=["b"]
    @dispatch
    def forward(self,tensordict): return tensordict.set("b",tensordict["a"]+1)
Base()(torch.ones(2)), Base()(a=torch.ones(2))

MB.is_tdmodule_compatible(nn.Linear(2,2)), MB.is_tdmodule_compatible(M(nn.Linear(2,2),["a"],["b"]))

TensorDict(batch_size=[2]).set("x",[torch.ones(2,4),torch.zeros(2,4)])

TensorDict(batch_size=[2]).set("x",[torch.ones(1,2,4),torch.zeros(1,2,4)])

TensorDict(batch_size=[2]).set("x",(torch.ones(3),torch.zeros(3)))

TensorDict().set("x",(torch.ones(1,2,4),torch.zeros(1,2,4)))

TensorDict(batch_size=[2]).set("x",(torch.ones(1),torch.zeros(1),torch.zeros(1)))

TensorDict(x=(torch.ones(1,2,4),torch.zeros(1,2,4)),batch_size=[2])

TensorDict(batch_size=[2]).set("x",(torch.ones(2,4),torch.zeros(3,4)))

TensorDict(batch_size=[2,1]).set("x",(torch.ones(1,4),torch.zeros(1,4)))

TensorDict(batch_size=[2,1]).set("x",(torch.ones(2,4),torch.zeros(2,4)))

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x*2,["b"],["c"]))
s[3]

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x*2,["b"],["c"]),M(lambda x:x*2,["c"],["d"]))
s[1:].in_keys, s[::2].in_keys, s[-1].in_keys, s[:0].in_keys

s=S(M(lambda x:x+1,["a"],["b"]),lambda td: td.set("z",td["b"]))
s(TensorDict(a=1)), s.out_keys

s=S(M(lambda x:x+1,["a"],["b"]),selected_out_keys=[("b",)])
s.out_keys

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]),selected_out_keys=["c"]); td=TensorDict(a=1,b=7)
s(td), td

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]),selected_out_keys=["c"]); o=TensorDict()
s(TensorDict(a=1),tensordict_out=o),o

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]),inplace=False); td=TensorDict(a=1)
s(td),td

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]),inplace="empty"); \
td=TensorDict(a=torch.ones(3),batch_size=[3])
s(td),td

s=S(M(lambda x:x+1,["a"],["b"],inplace=False),M(lambda x:x+1,["b"],["c"],inplace=False)); td=TensorDict(a=1)
s(td),td

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x,y:x+y,["b","q"],["c"]),partial_tolerant=True)
s(TensorDict(a=1)), s.in_keys

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x,y:x+y,["b","q"],["c"]))
s(TensorDict(a=1))

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x,y:x+y,["b","q"],["c"]),M(lambda x:x,["zz"],["u"]))
s.select_subsequence(in_keys=["a","q"]).out_keys, s.select_subsequence(out_keys=["c"]).in_keys

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x,y:x+y,["b","q"],["c"])); s.select_subsequence(in_keys=["foo"])

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]))
s(a=torch.ones(1)), s(torch.ones(1))

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"])).select_out_keys("c")
s(a=torch.ones(1)), s(TensorDict(a=1)), s.out_keys, s.out_keys_source

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"])).select_out_keys("c").reset_out_keys()
s(TensorDict(a=1)), s.out_keys

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]))
s(TensorDict(a=1),foo=3)

s=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Linear(2,2),["b"],["c"]))
[k for k,_ in s.named_parameters()], [k for k in s.state_dict()]

s=S(M(lambda x:x,["a"],["b"]),nn.Linear(2,2))

s=S(M(lambda x:x,["a"],["b"])); s[0]=M(lambda x:x,["c"],["d"])
s.in_keys,s.out_keys

s=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["b"],["c"])); del s[1]
s.in_keys,s.out_keys,len(s)

s=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["a"],["b"]))
s.in_keys,s.out_keys

s=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["b"],["a"]))
s.in_keys,s.out_keys, s.select_out_keys("a")(TensorDict(a=1))

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]))
with set_skip_existing(True): r=s(TensorDict(a=1,b=10)), s(TensorDict(a=1,c=10)), s(TensorDict(a=1,b=10,c=10))
r

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]))
with set_skip_existing(["b"]): r=s(TensorDict(a=1,b=10,c=10))
r

s=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Linear(2,2),["b"],["c"])); p=TensorDict.from_module(s)
sorted(map(str,p.keys(True,True)))

s=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Linear(2,2),["b"],["c"])); p=TensorDict.from_module(s).data.clone().zero_()
with p.to_module(s): r=s(TensorDict(a=torch.ones(2)))
r

s=S(M(lambda x:x+1,["a"],["b"]),selected_out_keys=["b"],partial_tolerant=True,inplace=True)
s(TensorDict(a=1)), s.partial_tolerant, s.inplace

s=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]),partial_tolerant=True)
l=LazyStackedTensorDict(TensorDict(a=1),TensorDict(a=2,z=3))
s(l)

s=S(M(lambda x:(x+1,x),["a"],["b","_"]),selected_out_keys=["_"])

s=S(M(lambda x:(x+1,x),["a"],["b","_"]))
s.out_keys,s(torch.ones(1))

s=S(partial_tolerant=1)
s(TensorDict(a=1))

s=S(M(lambda x:x+1,["a"],["b"]))
type(s.module).__name__, s.append if hasattr(s,"append") else None

import copy
s=S(M(nn.Linear(2,2),["a"],["b"]),selected_out_keys=["b"]); c=copy.deepcopy(s)
c.out_keys, c(TensorDict(a=torch.zeros(2)))["b"].shape

m=M(nn.Linear(2,2),["a"],["b"]); p=TensorDict.from_module(m).detach().clone().zero_(); torch.manual_seed(0)
m.reset_parameters_recursive(p)

s=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Conv2d(1,1,1),["b"],["c"])); torch.manual_seed(0); s.reset_parameters_recursive()
TensorDict.from_module(s).data

m=M(nn.Sequential(nn.Linear(2,2),nn.Dropout()),["a"],["b"]); torch.manual_seed(0); m.reset_parameters_recursive()
TensorDict.from_module(m).data

m=M(nn.Dropout(),["a"],["b"])
m.reset_parameters_recursive()

m=M(nn.Linear(2,2),["a"],["b"])
m.reset_parameters_recursive(TensorDict.from_module(m).data.unsqueeze(0))

w=WrapModule(lambda td: td.select("a"),inplace=True)
w(TensorDict(a=1,b=2))

w=WrapModule(nn.Linear(2,2))
list(w.state_dict())

w=WrapModule(lambda td: td.set("b",td["a"]+1),in_keys=["a"],out_keys=["b"])
w(a=torch.ones(1))

w=WrapModule(lambda td: td.set("b",td["a"]+1),in_keys=["a"],out_keys=["b","c"]); w.select_out_keys("b")
w(TensorDict(a=1)), w.out_keys

@as_tensordict_module(in_keys=["a"],out_keys=["b"])
def f(x): return x+1
f(TensorDict(a=1)), f(torch.ones(1)), f(a=torch.ones(1))

class Q:
    @as_tensordict_module(in_keys=["a"],out_keys=["b"])
    def f(self,x): return x+1
Q().f(TensorDict(a=1))

@as_tensordict_module(in_keys="a",out_keys="b")
def f(x): return x+1
f(TensorDict(a=1)), f.__name__

w=W(M(lambda x:(x,x),["a"],["b","c"])); w.select_out_keys("b")
w(TensorDict(a=1)), w.out_keys, w.td_module.out_keys

class R(nn.Module):
    n=0
    def __init__(self,name): super().__init__(); self.name_=name
    def reset_parameters(self): log.append(self.name_)
log=[]
s=S(M(R("a"),["a"],["b"]),M(nn.Sequential(R("b"),nn.Sequential(R("c"))),["b"],["c"])); s.reset_parameters_recursive()
log

class R(nn.Module):
    def __init__(self,name,*ch): super().__init__(); self.name_=name; self.ch=nn.ModuleList(ch)
    def reset_parameters(self): log.append(self.name_)
log=[]
m=M(R("a",R("b",R("c"))),["a"],["b"]); m.reset_parameters_recursive()
log

class R(nn.Module):
    def __init__(self,name,*ch): super().__init__(); self.name_=name; self.ch=nn.ModuleList(ch)
    def reset_parameters(self): log.append(self.name_)
log=[]
m=W(M(R("a",R("b",R("c"))),["a"],["b"])); m.reset_parameters_recursive()
log

class R(nn.Module):
    def __init__(self,name,*ch): super().__init__(); self.name_=name; self.ch=nn.ModuleList(ch)
    def reset_parameters(self): log.append(self.name_)
log=[]
m=S(W(M(R("a",R("b",R("c"))),["a"],["b"])),S(M(R("d"),["x"],["y"]))); m.reset_parameters_recursive()
log

class R(nn.Module):
    def __init__(self,name,*ch): super().__init__(); self.name_=name; self.ch=nn.ModuleList(ch)
    def reset_parameters(self): log.append(self.name_)
log=[]
m=M(nn.ModuleDict({"x":R("q"),"y":R("z")}),["a"],["b"],method="items"); m.reset_parameters_recursive()
log

s=S(M(lambda x:x+1,["a"],[("n","b")]),M(lambda x:x+1,[("n","b")],["c"]),selected_out_keys=["c"])
s(TensorDict(a=1)), s(torch.ones(1))

s=S(M(lambda x:x+1,["a"],[("n","b")]),M(lambda x:x+1,[("n","b")],["c"]),selected_out_keys=["c"])
s(TensorDict(a=1,n={'z':1}))

s=S(M(lambda x:x+1,["a"],[("n","b")]),M(lambda x:x+1,[("n","b")],[("n","c")]),selected_out_keys=[("n","c")])
s(TensorDict(a=1,n={'z':1}))

s=S(M(lambda x:x+1,["a"],[("n","b")]),M(lambda x:x+1,[("n","b")],[("m","c")]),selected_out_keys=[("m","c")])
s(TensorDict(a=1))

m=M(lambda x:(x,x),["a"],[("n","b"),("n","c")]).select_out_keys(("n","c"))
m(TensorDict(a=1))
""",  # noqa: E501
    ),
    *programs(
        "probabilistic",
        """
m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal,default_interaction_type="random")
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3)))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal,default_interaction_type=InteractionType.MEDIAN)
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3)))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal,return_log_prob=True,log_prob_key="lp")
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3))), m.out_keys, m.log_prob_key, m.log_prob_keys

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal,return_log_prob=True,log_prob_keys=["lp"])
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3))), m.out_keys, m.log_prob_key

m=PM(in_keys=["loc","scale"],out_keys=[("n","x")],distribution_class=d.Normal,return_log_prob=True)
m.out_keys,m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3)))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal,num_samples=2,default_interaction_type="random",return_log_prob=True)
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3),batch_size=[3]))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal,num_samples=torch.Size([2,3]),default_interaction_type="random")
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3),batch_size=[3]))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal,default_interaction_type="foo")

m=PM(in_keys=["probs"],out_keys=["x"],distribution_class=d.Categorical)
m(TensorDict(probs=torch.tensor([.1,.9])))

m=PM(in_keys=["probs"],out_keys=["x"],distribution_class=d.Categorical,default_interaction_type="mean")
m(TensorDict(probs=torch.tensor([.1,.9])))

m=PM(in_keys=["probs"],out_keys=["x"],distribution_class=d.Categorical,default_interaction_type="median")
m(TensorDict(probs=torch.tensor([.1,.9])))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal)
m.get_dist(TensorDict(loc=torch.zeros(3),scale=torch.ones(3))).mean, \
m.build_dist_from_params(TensorDict(loc=torch.zeros(3),scale=torch.ones(3))).scale

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal)
m.log_prob(TensorDict(loc=torch.zeros(3),scale=torch.ones(3),x=torch.ones(3)))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal)
m.log_prob(TensorDict(loc=torch.zeros(3),scale=torch.ones(3)))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal)
m(TensorDict(loc=torch.zeros(3)))

m=PM(in_keys=["mu","sigma"],out_keys=["x"],distribution_class=d.Normal)
m(TensorDict(mu=torch.zeros(3),sigma=torch.ones(3)))

m=PM(in_keys={"loc":"mu","scale":("n","sigma")},out_keys=["x"],distribution_class=d.Normal)
m(TensorDict(mu=torch.zeros(3),n={"sigma":torch.ones(3)})),m.in_keys

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal)
m(torch.zeros(3),torch.ones(3)), m(loc=torch.zeros(3),scale=torch.ones(3))

m=PM(in_keys=["loc","scale"],distribution_class=d.Normal)
m.out_keys

m=PM(in_keys=["param"],out_keys=["x"])
m(TensorDict(param=torch.zeros(3)))

m=PM(in_keys=["loc","scale"],out_keys=["x"],distribution_class=d.Normal)
with set_interaction_type("mode"), \
set_interaction_type(None): r=m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3))), \
interaction_type()
r

with set_interaction_type("mode"):
    with set_interaction_type(InteractionType.RANDOM): a=interaction_type()
    b=interaction_type()
a,b,interaction_type()

@set_interaction_type("mean")
def f(): return interaction_type()
f(), interaction_type()

[InteractionType.from_str(x) for x in ("MODE","mean","Random")], InteractionType("mode"), \
str(InteractionType.MODE), list(InteractionType.__members__)

InteractionType.from_str("foo")

s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True))
s(TensorDict(a=torch.zeros(3))),s.out_keys,s.in_keys

s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True)); \
td=TensorDict(a=torch.zeros(3))
s.get_dist(td).scale, td, s.get_dist_params(TensorDict(a=torch.zeros(3))), s.log_prob(s(TensorDict(a=torch.zeros(3))))

s=PS(M(lambda x:x,["a"],["loc"]))
s.return_composite

s=PS()
s.out_keys

s=PS(PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True),PM({"loc":"x","scale":"scale"},["y"],distribution_class=d.Normal,return_log_prob=True)); \
td=TensorDict(loc=torch.zeros(3),scale=torch.ones(3))
s.log_prob_keys,s.dist_params_keys,s.dist_sample_keys,s.return_composite,s(td),s.log_prob(td)

s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),PS(PM(["loc","scale"],["x"],distribution_class=d.Normal),PM({"loc":"x","scale":"scale"},["y"],distribution_class=d.Normal),return_composite=True),return_composite=True); \
td=TensorDict(a=torch.ones(3))
x=s.get_dist(td); s(td); {k:v.mean for k,v in x.dists.items()},s.log_prob(td)

s=PS(PS(PM(["loc","scale"],["x"],distribution_class=d.Normal)),PM({"loc":"x","scale":"scale"},["y"],distribution_class=d.Normal),return_composite=True); \
td=TensorDict(loc=torch.ones(3),scale=torch.ones(3))
x=s.get_dist(td); s(td); {k:v.mean for k,v in x.dists.items()},s.log_prob(td)

with set_composite_lp_aggregate(True):
    s=PS(PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True),PM({"loc":"x","scale":"scale"},["y"],distribution_class=d.Normal,return_log_prob=True)); \
td=TensorDict(loc=torch.zeros(3),scale=torch.ones(3)); \
r=s(td),s.log_prob(td),s.log_prob_keys, s.out_keys
r

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"logits":torch.zeros(3,4)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"y":d.Categorical}); s=d.sample()
s,d.log_prob(s),d.mode,d.deterministic_sample,d.entropy()

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"logits":torch.zeros(3,4)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"y":d.Categorical})
d.mean

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"logits":torch.zeros(3,4)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"y":d.Categorical},name_map={"x":"u","y":("n","v")}); s=d.sample((2,))
s,d.log_prob(s)

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"loc":torch.zeros(3,4),"scale":torch.ones(3,4)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"y":d.Normal}); s=d.rsample()
d.rsample_and_log_prob(), d.sample_and_log_prob((2,)), d.cdf(s), d.icdf(d.cdf(s))

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"logits":torch.zeros(3,4)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"y":d.Categorical})
d.entropy_composite(), d.entropy_composite(include_sum=True), d.log_prob_composite(d.mode), \
d.log_prob_composite(d.mode,include_sum=True)

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"logits":torch.zeros(3,4)},batch_size=[3])
with set_composite_lp_aggregate(True):
    d=CompositeDistribution(p,{"x":d.Normal,"y":d.Categorical},log_prob_key="lp",entropy_key="en"); \
r=d.log_prob(d.mode), d.entropy(), d.entropy_composite(), d.log_prob_composite(d.mode), \
d.log_prob_key, d.entropy_key
r

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal},log_prob_key="lp")
d.log_prob_key

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"z":d.Normal})
d.sample()

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal},extra_kwargs={"x":{"validate_args":False}})
d.sample(),d.batch_shape, d.event_shape if hasattr(d,"event_shape") else None

p=TensorDict(batch_size=[3]); d=CompositeDistribution.from_distributions(p,{"x":d.Normal(torch.zeros(3),1.),("n","y"):d.Bernoulli(torch.full((3,),.3))}); \
torch.manual_seed(0)
d.sample(), d.mode, d.log_prob(d.mode)

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal})
d.log_prob(TensorDict(batch_size=[3]))

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"logits":torch.zeros(3,4)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"y":d.Categorical})
d.entropy(samples_mc=5,include_sum=False), d.entropy(aggregate_probabilities=True)

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},y={"logits":torch.zeros(3,4)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal,"y":d.Categorical}); d.log_prob_key="foo"; d.entropy_key="bar"
d.log_prob_key,d.entropy_key

m=PM(["p"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Categorical}},return_log_prob=True)
m.out_keys,m.log_prob_keys,m.dist_sample_keys

m=PM(["params"],["x","y"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Categorical}},return_log_prob=True,log_prob_keys=["lx","ly"]); \
td=TensorDict(params={"x":{"loc":torch.zeros(3),"scale":torch.ones(3)},"y":{"logits":torch.ones(3,4)}},batch_size=[3])
m.out_keys,m(td),m.log_prob(td)

m=PM(["params"],["x","y"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Categorical}},return_log_prob=True,log_prob_key="lp")

with set_composite_lp_aggregate(True):
    m=PM(["params"],["x","y"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Categorical}},return_log_prob=True,log_prob_key="lp"); \
td=TensorDict(params={"x":{"loc":torch.zeros(3),"scale":torch.ones(3)},"y":{"logits":torch.ones(3,4)}},batch_size=[3]); \
r=m.out_keys,m(td),m.log_prob(td)
r

with set_composite_lp_aggregate(True):
    m=PM(["params"],["x","y"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Categorical}},return_log_prob=True)
td=TensorDict(params={"x":{"loc":torch.zeros(3),"scale":torch.ones(3)},"y":{"logits":torch.ones(3,4)}},batch_size=[3])
m(td)

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,generator="g",default_interaction_type="random")
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3),g=torch.tensor([1,2])))

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,generator=3,default_interaction_type="random"); \
t=TensorDict(loc=torch.zeros(3),scale=torch.ones(3))
m(t)["x"], m(t)["x"]

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,n_empirical_estimate=5,default_interaction_type="mean")
m.n_empirical_estimate

class NoMean(d.Distribution):
    arg_constraints={}
    def __init__(self,loc): self.loc=loc; super().__init__(loc.shape)
    def rsample(self,shape=()): return self.loc.expand(torch.Size(shape)+self.loc.shape)+1
    has_rsample=True
m=PM(["loc"],["x"],distribution_class=NoMean,n_empirical_estimate=5,default_interaction_type="mean")
m(TensorDict(loc=torch.zeros(3)))

class NoMean(d.Distribution):
    arg_constraints={}
    def __init__(self,loc): self.loc=loc; super().__init__(loc.shape)
    def rsample(self,shape=()): return self.loc.expand(torch.Size(shape)+self.loc.shape)+1
    has_rsample=True
m=PM(["loc"],["x"],distribution_class=NoMean,default_interaction_type="deterministic")
m(TensorDict(loc=torch.zeros(3)))

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,cache_dist=True)
m.cache_dist if hasattr(m,"cache_dist") else None

m=PM(["loc","scale"],["x"],distribution_class=d.Normal); m.select_out_keys("loc")

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True)
with set_skip_existing(True): r=m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3),x=torch.ones(3))), \
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3),x=torch.ones(3),x_log_prob=torch.ones(3)))
r

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal}); s=d.rsample(); c=d.cdf(s); i=d.icdf(c)
c is s, i is c, i, d.log_prob_composite(s) is s, d.log_prob(s) is s

p=TensorDict(x={"loc":torch.zeros(3),"scale":torch.ones(3)},batch_size=[3])
d=CompositeDistribution(p,{"x":d.Normal})
d.icdf(TensorDict(x=torch.full((3,),.5),batch_size=[3]))
""",  # noqa: E501
    ),
    *programs(
        "parameters",
        """
p=TensorDictParams(TensorDict(a=torch.ones(3),n={"b":torch.zeros(2)})); \
o=torch.optim.SGD(p.parameters(),lr=1.); (p["a"].sum()*2+p["n","b"].sum()).backward(); o.step()
p.data, p.grad

p=TensorDictParams(TensorDict(a=torch.ones(3),n={"b":torch.zeros(2)})); sd=p.state_dict()
list(sd), p.load_state_dict({k:v+1 for k,v in sd.items()}), p.data

class M(nn.Module):
    def __init__(self): super().__init__(); self.p=TensorDictParams(TensorDict(a=torch.ones(3),n={"b":torch.zeros(2)}))
m=M(); sd=m.state_dict()
list(sd), [k for k,_ in m.named_parameters()], \
m.load_state_dict({k:v+1 if hasattr(v,'dtype') else v for k,v in sd.items()}), m.p.data

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.lock_(); p["b"]=torch.ones(1)

p=TensorDictParams(TensorDict(a=torch.ones(3)),lock=True)
p.is_locked; p["b"]=torch.ones(1)

p=TensorDictParams(TensorDict(a=torch.ones(3),i=torch.ones(3,dtype=torch.int64)),no_convert=True)
[type(v).__name__ for v in p.values()], [k for k,_ in p.named_buffers()]

p=TensorDictParams(TensorDict(a=torch.ones(3),i=torch.ones(3,dtype=torch.int64)))
[type(v).__name__ for v in p.values()], [k for k,_ in p.named_buffers()], [k for k,_ in p.named_parameters()]

p=TensorDictParams(TensorDict(a=torch.ones(3)),no_convert="skip")
[type(v).__name__ for v in p.values()]

import copy
p=TensorDictParams(TensorDict(a=torch.ones(3))); c=copy.deepcopy(p)
type(c).__name__, c["a"] is p["a"], type(c["a"]).__name__, type(copy.copy(p)).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3))); q=p.to(torch.float64)
q is p, p["a"].dtype, type(q).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3))); q=p.to("cpu")
q is p, q.device, type(q).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.requires_grad_(False)
p["a"].requires_grad, p.requires_grad

p=TensorDictParams(TensorDict(a=torch.ones(3),b=Buffer(torch.ones(2))) if 'Buffer' in globals() else \
TensorDict(a=torch.ones(3),b=nn.Buffer(torch.ones(2))))
[k for k,_ in p.named_parameters()],[k for k,_ in p.named_buffers()]

p=TensorDictParams(TensorDict(a=torch.ones(3))); q=p+1
type(q).__name__, q

p=TensorDictParams(TensorDict(a=torch.ones(3),n={"b":torch.ones(2)}))
type(p["n"]).__name__, type(p.get("n")).__name__, type(p.select("a")).__name__, \
type(p.flatten_keys(".")).__name__, type(p.clone()).__name__, type(p.data).__name__, \
type(p.detach()).__name__, type(p.apply(lambda x:x+1)).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3,2),batch_size=[3]))
type(p[0]).__name__, type(p.view(1,3)).__name__, type(p.unbind(0)[0]).__name__, \
type(p.expand(2,3)).__name__, type(p.unsqueeze(0)).__name__, type(torch.stack([p,p])).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.set("b",torch.ones(2))
type(p["b"]).__name__, p["b"].requires_grad

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.update({"a":torch.zeros(3)})
type(p["a"]).__name__, p

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.update_({"a":torch.zeros(3)})
p

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.data.zero_()
p

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.zero_()
p

p=TensorDictParams(TensorDict(a=torch.ones(3))); del p["a"]
list(p.keys()), list(p.parameters())

p=TensorDictParams(TensorDict(a=torch.ones(3)))
hash(p)==hash(p), p==p, p is p

p=TensorDictParams(TensorDict(a=torch.ones(3))); m=nn.Module(); m.p=p
[n for n,_ in m.named_modules()], m.p is p, [n for n,_ in m.named_parameters()]

import pickle
p=TensorDictParams(TensorDict(a=torch.ones(3),n={"b":torch.ones(2)})); q=pickle.loads(pickle.dumps(p))
q, type(q["a"]).__name__

import io
p=TensorDictParams(TensorDict(a=torch.ones(3))); b=io.BytesIO(); torch.save(p,b); b.seek(0); \
q=torch.load(b,weights_only=False)
q,type(q).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.register_get_post_hook(lambda self,key,val: val*2)
p["a"], p.get("a")

p=TensorDictParams({"a":torch.ones(3)})
p

p=TensorDictParams(a=torch.ones(3),b={"c":torch.ones(1)})
p

p=TensorDictParams(TensorDict(a="x",b=torch.ones(2)))
p, p["a"]

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.zero_grad(); (p["a"]**2).sum().backward(); g=p.grad; p.zero_grad()
g, p["a"].grad

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.train(); p.eval()
p.training

p=TensorDictParams(TensorDict(a=torch.ones(3)))
p.half()["a"].dtype, type(p.double()).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3),n={"b":torch.ones(2)}))
sum(x.numel() for x in p.parameters()), p.param_count(), p.numel()

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.batch_size=[3]
p.batch_size

s=LazyStackedTensorDict(TensorDict(a=torch.ones(3)),TensorDict(a=torch.ones(3))); p=TensorDictParams(s)
[n for n,_ in p.named_parameters()], p

p=TensorDictParams(TensorDict(a=torch.ones(3),n={"b":torch.ones(2)})); p["n"]["z"]=torch.ones(1)
[n for n,_ in p.named_parameters()], type(p["n","z"]).__name__

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.lock_(); p.unlock_(); p["b"]=torch.ones(1)
p

p=TensorDictParams(TensorDict(a=torch.ones(3))); q=p.apply(lambda x: x.data.clone())
type(q).__name__, [type(v).__name__ for v in q.values()]

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.apply_(lambda x: x.data.add_(1))
p

p=TensorDictParams(TensorDict(a=torch.ones(3)))
p.memmap_() if False else p.cpu() is p

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.share_memory_()
p["a"].is_shared(), p.is_shared()

m=nn.Sequential(nn.Linear(2,2),nn.BatchNorm1d(2)); p=TensorDict.from_module(m)
p, p.is_locked

m=nn.Sequential(nn.Linear(2,2),nn.BatchNorm1d(2)); p=TensorDict.from_module(m,as_module=True)
type(p).__name__, [n for n,_ in p.named_parameters()], [n for n,_ in p.named_buffers()]

a=nn.Linear(2,2); m=nn.ModuleDict({"x":a,"y":a}); p=TensorDict.from_module(m)
p["x","weight"] is p["y","weight"], sorted(map(str,p.keys(True,True)))

a=nn.Linear(2,2); b=nn.Linear(2,2); b.weight=a.weight; m=nn.Sequential(a,b); \
p=TensorDict.from_module(m); q=p.data.clone()
with q.to_module(m): r=m[0].weight is m[1].weight, torch.equal(m[0].weight,m[1].weight)
r

m=nn.LazyLinear(2); p=TensorDict.from_module(m)
[type(v).__name__ for v in p.values()]

m=nn.Sequential(nn.LazyLinear(2)); m(torch.ones(1,3)); p=TensorDict.from_module(m).data.clone().zero_()
with p.to_module(m): r=m(torch.ones(1,3))
r

ms=[nn.Linear(2,3) for _ in range(3)]; p=TensorDict.from_modules(*ms,as_module=True)
p.batch_size, [n for n,_ in p.named_parameters()], type(p["weight"]).__name__, p.is_locked

ms=[nn.Linear(2,3) for _ in range(3)]; p=TensorDict.from_modules(*ms,lazy_stack=True)
type(p).__name__, p.batch_size, p["weight"].shape

ms=[nn.Linear(2,3),nn.Linear(2,4)]; p=TensorDict.from_modules(*ms,lazy_stack=True)
type(p).__name__, p.batch_size

ms=[nn.Linear(2,3),nn.Linear(2,4)]; p=TensorDict.from_modules(*ms)

m=nn.Linear(2,3); p=TensorDict.from_modules(m,m,expand_identical=True)
p.batch_size, p["weight"].stride(), type(p["weight"]).__name__

m=nn.Linear(2,2); p=TensorDict.from_module(m).data.clone().zero_(); s=p.to_module(m,return_swap=True)
m.weight.data, s["weight"].shape, type(m.weight).__name__, m.weight.requires_grad

m=nn.Linear(2,2); p=TensorDict.from_module(m).data.clone().zero_()
p.to_module(m,return_swap=False), m.weight.data

m=nn.BatchNorm1d(2); p=TensorDict.from_module(m,use_state_dict=True)
sorted(p.keys()), p.is_locked

m=nn.BatchNorm1d(2); p=TensorDict.from_module(m,use_state_dict=True).clone(); p.zero_(); \
p.to_module(m,use_state_dict=True)
m.weight

class M(nn.Module):
    def __init__(self): super().__init__(); self.l=[nn.Linear(2,2)]; \
self.p=nn.Parameter(torch.ones(1)); self.register_buffer("b",torch.zeros(1)); \
self.register_buffer("nb",torch.zeros(1),persistent=False)
m=M()
sorted(TensorDict.from_module(m).keys()), sorted(TensorDict.from_module(m,use_state_dict=True).keys())

m=nn.ParameterList([torch.ones(2),torch.zeros(1)]); p=TensorDict.from_module(m)
p

m=nn.ParameterDict({"a":torch.ones(2)}); p=TensorDict.from_module(m)
p

m=nn.MultiheadAttention(4,2)
sorted(map(str,TensorDict.from_module(m).keys(True,True)))

m=nn.Transformer(4,2,1,1,8)
len(TensorDict.from_module(m).flatten_keys("."))

m=nn.Sequential(nn.Linear(2,2),nn.ReLU())
sorted(from_module(m,filter_empty=False).keys()), sorted(from_module(m).keys())

p=TensorDictParams(TensorDict(a=torch.ones(3))); p.share_memory_()
p["a"].is_shared(), p.is_shared(), p.is_locked, type(p["a"]).__name__

class M(nn.Module):
    def __init__(self): super().__init__(); self.p=TensorDictParams(TensorDict(a=torch.ones(3)))
m=M().share_memory()
m.p["a"].is_shared(), m.p.is_shared(), m.p.is_locked
""",  # noqa: E501
    ),
    *programs(
        "transforms",
        """
torch.vmap(lambda td: td+1,in_dims=0)(TensorDict(a=torch.zeros(3,2),batch_size=[3]))

torch.vmap(lambda td: td+1,in_dims=1,out_dims=1)(TensorDict(a=torch.zeros(3,2),batch_size=[3,2]))

torch.vmap(lambda td,x: td["a"]*x,in_dims=(0,None))(TensorDict(a=torch.ones(3,2),batch_size=[3]),torch.tensor(2.))

torch.vmap(lambda td: td["a"]+torch.randn(2),randomness="different")(TensorDict(a=torch.zeros(3,2),batch_size=[3]))

torch.vmap(lambda td: td["a"]+torch.randn(2),randomness="same")(TensorDict(a=torch.zeros(3,2),batch_size=[3]))

torch.vmap(lambda td: td["a"]+torch.randn(2))(TensorDict(a=torch.zeros(3,2),batch_size=[3]))

torch.vmap(lambda td: td*2,chunk_size=2)(TensorDict(a=torch.ones(5,2),batch_size=[5]))

torch.vmap(torch.vmap(lambda td: td["a"]*2))(TensorDict(a=torch.ones(5,2),batch_size=[5,2]))

torch.vmap(lambda td: (td,td["a"].sum()),out_dims=(0,0))(TensorDict(a=torch.ones(5,2),batch_size=[5]))

torch.vmap(lambda d: d["t"]+d["x"])({"t":TensorDict(a=torch.ones(5,2),batch_size=[5]),"x":torch.ones(5)})

torch.vmap(lambda t: t["a"]*2)(LazyStackedTensorDict(TensorDict(a=torch.ones(2)),TensorDict(a=torch.zeros(2))))

@tensorclass
class C:
    a: torch.Tensor
    s: str = "q"
torch.vmap(lambda c: c.a*2)(C(torch.ones(3,2),batch_size=[3]))

@tensorclass
class C:
    a: torch.Tensor
    s: str = "q"
torch.vmap(lambda c: c+1)(C(torch.ones(3,2),batch_size=[3]))

@tensorclass
class C:
    a: torch.Tensor
torch.vmap(lambda x: C(x*2,batch_size=[]))(torch.ones(3,2))

torch.vmap(lambda x: TensorDict(a=x*2,n={"b":x}))(torch.ones(3,2))

torch.vmap(lambda x: TensorDict(a=x*2,batch_size=x.shape),out_dims=1)(torch.ones(3,2))

torch.vmap(lambda x: TensorDict(a=torch.ones(2)))(torch.ones(3,2))

td=TensorDict(a=torch.ones(3,2),batch_size=[3]); torch.vmap(lambda t: t.set("b",t["a"]+1))(td)
td

td=TensorDict(a=torch.ones(3,2),batch_size=[3]); torch.vmap(lambda t: t.set_("a",t["a"]+1))(td)
td

torch.vmap(lambda t: t["a"][0])(TensorDict(a=torch.ones(3,2),batch_size=[3]).lock_())

m=nn.Linear(2,3); ps=TensorDict.from_modules(*[nn.Linear(2,3) for _ in range(4)])
def f(x,p):
    with p.to_module(m): return m(x)
torch.vmap(f,(None,0))(torch.ones(5,2),ps).shape, \
torch.vmap(f,(0,None))(torch.ones(5,2),ps[0]).shape, \
torch.vmap(f,(0,0))(torch.ones(4,5,2),ps).shape

m=nn.Sequential(nn.Linear(2,3),nn.BatchNorm1d(3)); ps=TensorDict.from_modules(m,m)
m.eval()
def f(x,p):
    with p.to_module(m): return m(x)
torch.vmap(f,(None,0))(torch.ones(5,2),ps).shape

m=M(nn.Linear(2,3),["a"],["b"]); ps=TensorDict.from_modules(m,m,m)
def f(td,p):
    with p.to_module(m): return m(td)
torch.vmap(f,(None,0))(TensorDict(a=torch.ones(5,2),batch_size=[5]),ps).batch_size, \
torch.vmap(f,(0,None))(TensorDict(a=torch.ones(5,2),batch_size=[5]),ps[0]).batch_size

torch.vmap(lambda t: t.sum())(TensorDict(a=torch.ones(3,2),batch_size=[3,2]))

torch.vmap(lambda t: t.view(-1))(TensorDict(a=torch.ones(3,2,2),batch_size=[3,2,2]))

torch.vmap(lambda t: torch.stack([t,t]))(TensorDict(a=torch.ones(3,2),batch_size=[3]))

torch.vmap(lambda t: torch.cat([t,t]))(TensorDict(a=torch.ones(3,2),batch_size=[3,2]))

torch.vmap(lambda t: t[0])(TensorDict(a=torch.ones(3,2),batch_size=[3,2]))

torch.vmap(lambda t: t.batch_size)(TensorDict(a=torch.ones(3,2),batch_size=[3,2]))

torch.vmap(lambda t: t.select("a"))(TensorDict(a=torch.ones(3,2),b=torch.ones(3),batch_size=[3]))

torch.vmap(lambda t,u: t+u,in_dims=(0,1))(TensorDict(a=torch.ones(3,2),batch_size=[3]),TensorDict(a=torch.ones(2,3),batch_size=[2,3]))

torch.vmap(lambda t,u: t+u)(TensorDict(a=torch.ones(3),batch_size=[3]),TensorDict(a=torch.ones(4),batch_size=[4]))

torch.func.grad(lambda td: (td["a"]**2).sum())(TensorDict(a=torch.ones(3),b=torch.zeros(2)))

torch.func.grad_and_value(lambda td: (td["a"]**2).sum())(TensorDict(a=torch.ones(3)))

torch.func.grad(lambda td: ((td["a"]**2).sum(),td["a"]),has_aux=True)(TensorDict(a=torch.ones(3)))

torch.func.grad(lambda x,td: (td["a"]*x).sum(),argnums=1)(torch.ones(3),TensorDict(a=torch.ones(3)))

torch.func.grad(lambda x,td: (td["a"]*x).sum(),argnums=(0,1))(torch.ones(3),TensorDict(a=torch.ones(3)))

torch.func.jacrev(lambda td: td["a"]**2)(TensorDict(a=torch.arange(2.)))

torch.func.jacfwd(lambda td: td["a"]**2)(TensorDict(a=torch.arange(2.)))

torch.func.hessian(lambda td: (td["a"]**3).sum())(TensorDict(a=torch.arange(2.)))

torch.func.jacrev(lambda td: td**2)(TensorDict(a=torch.arange(2.)))

torch.func.jacfwd(lambda td: td**2)(TensorDict(a=torch.arange(2.)))

torch.func.vjp(lambda td: td["a"]*2,TensorDict(a=torch.arange(2.)))[1](torch.ones(2))

torch.func.jvp(lambda td: td["a"]*2,(TensorDict(a=torch.arange(2.)),),(TensorDict(a=torch.ones(2)),))

@tensorclass
class C:
    a: torch.Tensor
torch.func.grad(lambda c: (c.a**2).sum())(C(torch.ones(3),batch_size=[3]))

s=LazyStackedTensorDict(TensorDict(a=torch.ones(2)),TensorDict(a=torch.zeros(2)))
torch.func.grad(lambda s: (s["a"]**2).sum())(s)

m=nn.Linear(2,1); p=TensorDict.from_module(m).data
def loss(p,x):
    with p.to_module(m): return m(x).sum()
torch.func.grad(loss)(p,torch.ones(2)), torch.vmap(torch.func.grad(loss),(None,0))(p,torch.ones(4,2))

m=nn.Linear(2,1); p=TensorDict.from_module(m)
torch.func.functional_call(m,dict(p.data.clone().zero_().flatten_keys(".")),(torch.ones(2),))

m=nn.Linear(2,1); p=TensorDict.from_module(m).data.clone().zero_()
torch.func.functional_call(m,p.to_dict(),(torch.ones(2),))

m=nn.Linear(2,1); p=TensorDict.from_module(m).data.clone().zero_()
torch.func.functional_call(m,p,(torch.ones(2),))

torch.func.grad(lambda td: td["a"])(TensorDict(a=torch.ones(3)))

td=TensorDict(a=torch.ones(3,requires_grad=True)); td["a"].sum().backward()
td.grad, td.data.requires_grad, td.requires_grad

td=TensorDict(a=torch.ones(3,requires_grad=True)); (td*2).sum(reduce=True).backward()
td.grad

td=TensorDict(a=torch.ones(3,requires_grad=True)); (td*2).backward(TensorDict(a=torch.ones(3)))
td.grad

td=TensorDict(a=torch.ones(3,requires_grad=True))
torch.autograd.grad((td*2)["a"].sum(),td["a"])

td=TensorDict(a=torch.ones(3,requires_grad=True))
torch.autograd.grad(td*2,td,grad_outputs=TensorDict(a=torch.ones(3)))

td=TensorDict(a=torch.ones(3),n={"b":torch.ones(1)}).requires_grad_(); \
(td["a"].sum()+td["n","b"].sum()).backward(); td.zero_grad()
td.grad

td=TensorDict(a=torch.ones(3),n={"b":torch.ones(1)}).requires_grad_(); \
td.grad=TensorDict(a=torch.ones(3),n={"b":torch.ones(1)})
td["a"].grad

td=TensorDict(a=torch.ones(3),n={"b":torch.ones(1)}).requires_grad_()
td.detach()["a"].requires_grad, td.detach_()["a"].requires_grad, td.param_count()
""",  # noqa: E501
    ),
    *[
        Case("transforms", "none", SETUP + program, reason=reason, ours=ours)
        for program, reason, ours in ACCEPTED
    ],
]

CASES = differing(
    CASES,
    '{"x":d.Normal,"z":d.Normal}',
    reason="keys are shown as those of a dictionary, and not by a private class",
    ours="'with keys dict_keys(' in str(error)",
)
CASES = differing(
    CASES,
    "b.weight=a.weight; m=nn.Sequential(a,b)",
    "q=p.data.clone()",
    reason="equal values for a tied parameter leave it tied",
    ours="result == (True, True)",
)

HELPERS = (SETUP,)
"""The beginnings of programs: answers go by what follows them."""
