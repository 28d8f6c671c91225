"""Results of modules, and more programs of modules, parameters and distributions.

As in ``cases_transforms`` a program is a paragraph.
"""

from frame import Case, differing

SETUP = "from tensordict import *\nfrom nn_setup import *\ntorch.manual_seed(0)\n"


def programs(method: str, text: str) -> list[Case]:
    """A case for each paragraph."""
    paragraphs = text.strip().split("\n\n")
    return [Case(method, "none", SETUP + program) for program in paragraphs]


CASES = [
    *programs(
        "modules",
        """
m=M(lambda x:(x,x),["a"],["b","c"]); m.select_out_keys("b"); m.out_keys=["x","y"]
(m.out_keys,m.out_keys_source,m(TensorDict(a=torch.ones(2))))

m=M(lambda x:(x,x),["a"],["b",("n","c")]); m.select_out_keys(("n","c"))
(m(torch.ones(2)),m(TensorDict(a=torch.ones(2))),len(m._forward_hooks));

import copy
m=M(lambda x:(x,x),["a"],["b",("n","c")]); m.select_out_keys(("n","c")); m2=copy.deepcopy(m)
(m2.out_keys,m2(TensorDict(a=torch.ones(2))))

m=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Linear(2,2),["b"],["c"])); sd=m.state_dict()
list(sd)

m=S({"x":M(nn.Linear(2,2),["a"],["b"]),"y":M(nn.Linear(2,2),["b"],["c"])})
m["x"].in_keys

m=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Linear(2,2),["b"],["c"])); del m[0]
(m.in_keys,m.out_keys,len(m))

m=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Linear(2,2),["b"],["c"]))
m[5]

m=S(M(nn.Linear(2,2),["a"],["b"]),M(nn.Linear(2,2),["b"],["c"]))
m[-1].in_keys

m=S()
(m.in_keys,m.out_keys,m(TensorDict(a=1)))

m=S([])
(m.in_keys,m.out_keys)

m=S(nn.Linear(2,2))

m=S(lambda td: td.set("z",td["a"]+1), M(lambda x:x,["z"],["y"]))
(m.in_keys,m.out_keys,m(TensorDict(a=torch.ones(1))))

m=S(3)

m=S(M(nn.Linear(2,2),["a"],["b"]),None)

m=S(M(lambda x:x,["a"],["b"]),selected_out_keys=["c"])

m=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["b"],["c"]),selected_out_keys=["b"])
(m.out_keys,m(TensorDict(a=torch.ones(1))),m.reset_out_keys().out_keys,m(TensorDict(a=torch.ones(1))))

m=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["b"],["c"]))
m(b=torch.ones(1))

m=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["b"],["c"]))
m()

m=M(lambda x:x,["a"],["b"])
m()

m=M(lambda x:x,["a"],["b"])
m(a=torch.ones(1),tensordict_out=TensorDict())

m=M(lambda x:x,["a"],["b"]); o=TensorDict()
(m(TensorDict(a=torch.ones(1)),tensordict_out=o), o)

m=M(lambda x,y=2:x*y,["a"],["b"])
m(TensorDict(a=torch.ones(1)),y=5)

m=M(lambda x,y=2:x*y,["a"],["b"])
m(torch.ones(1),y=5)

m=M(lambda x,*y:x,["a"],["b"])
m(torch.ones(1),torch.ones(2))

m=M(lambda x:x,["a"],["b"])
m(TensorDict(a=torch.ones(1)),torch.ones(2))

m=M(lambda x,y:x+y,["a",("n","b")],["c"])
m(a=torch.ones(1),n_b=torch.ones(1))

m=M(lambda x,y:x+y,["a",("n","b")],["c"])
m(torch.ones(1),a=torch.ones(1))

m=M(lambda x,y:x+y,["a",("n","b")],["c"])
m(n_b=torch.ones(1))

m=M(lambda x,y:x+y,{"x":"a","y":("n","b")},["c"],out_to_in_map=True)
(m.in_keys,m(a=torch.ones(1),n_b=torch.ones(1)))

m=M(lambda x,y:x+y,{"x":"a","y":("n","b")},["c"])
(m.in_keys,m(TensorDict(a=1.,n=dict(b=2.))))

m=M(lambda x,y:x+y,{"a":"x",("n","b"):"y"},["c"],out_to_in_map=False)
(m.in_keys,m(TensorDict(a=1.,n=dict(b=2.))))

m=M(lambda x,y:x+y,{"a":"x","b":3},["c"],out_to_in_map=False)
(m.in_keys,m(TensorDict(a=1.,b=2.)))

m=M(lambda x:x,["a","a"],["c"])
m.in_keys

m=M(lambda x:(x,x+1),["a"],["c","c"])
(m.out_keys,m(TensorDict(a=1.)))

m=M(lambda x:(x,x+1),["a"],["_","_"])
(m.out_keys,m(TensorDict(a=1.)),m(torch.ones(1)))

m=M(lambda x:None,["a"],["c"])
m(TensorDict(a=1.))

m=M(lambda x:None,["a"],[])
m(TensorDict(a=1.))

m=M(lambda x:{"c":x},["a"],["c"])
m(TensorDict(a=1.))

m=M(lambda x:{"d":x},["a"],["c"])
m(TensorDict(a=1.))

m=M(lambda x:TensorDict(d=x),["a"],["c"])
m(TensorDict(a=1.))

m=M(lambda x:TensorDict(c=x,e=x),["a"],["c","e"])
m(TensorDict(a=1.))

m=M(lambda x:TensorDict(c=x,e=x),["a"],["c","f"])
m(TensorDict(a=1.))

m=M(lambda x:[x,x],["a"],["c","f"])
m(TensorDict(a=1.))

m=M(lambda x:[x,x],["a"],["c"])
m(TensorDict(a=1.))

m=M(lambda x:"hello",["a"],["c"])
m(TensorDict(a=1.))

m=M(lambda x:3,["a"],["c"])
m(TensorDict(a=1.))

m=M(lambda x:(x,"hello"),["a"],["c","d"])
m(torch.ones(1))

m=M(lambda s:s+"!",["s"],["t"])
m(TensorDict(s="hi"))["t"]

m=M(lambda s:len(s),["s"],["t"])
m(s="hi")

m=M(lambda x:x,["a"],["b"],inplace="full")

m=M(lambda x:x,["a"],["b"],inplace=None)
m(TensorDict(a=1.,c=2.))

m=M(lambda x:x,["a"],["b"],inplace=False); t=TensorDict(a=torch.ones(2),batch_size=[2])
(m(t),t)

m=M(lambda x:x,["a"],["b"],inplace="empty"); t=TensorDict(a=torch.ones(2),batch_size=[2])
(m(t),t)

t=TensorDict(a=torch.ones(2),batch_size=[2]).lock_(); m=M(lambda x:x,["a"],["b"])
m(t)

t=TensorDict(a=torch.ones(2),b=torch.zeros(2),batch_size=[2]).lock_(); m=M(lambda x:x,["a"],["b"])
m(t)

t=TensorDict(a=torch.ones(2),batch_size=[2]).lock_(); m=M(lambda x:x,["a"],["b"],inplace="empty")
m(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2,3]); m=M(lambda x:x.sum(),["a"],["b"])
m(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2,3]); m=M(nn.Linear(4,5),["a"],["b"])
m(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2]); m=M(nn.Linear(3,5),["a"],["a"])
m(t)

m=M(nn.Linear(3,5),[],["a"])
m(TensorDict())

m=M(lambda: torch.ones(2),[],["a"])
(m(TensorDict()),)

m=M(lambda: torch.ones(2),[],["a"])
m()

m=M(nn.Linear(3,5),3,["a"])

m=M(nn.Linear(3,5),["a"],{"a":1})

m=M(nn.Linear(3,5),("n","a"),("n","b"))
m.in_keys,m.out_keys

m=M(nn.Linear(3,5),"a","b")
m.in_keys,m.out_keys,m(torch.ones(3)).shape

m=M(nn.Linear(3,5),["a",3],["b"])

m=M(nn.Linear,["a"],["b"])

m=M(nn.Linear(3,5),["a"],["b"],method="extra_repr")
m(TensorDict(a=torch.ones(3)))

class M(nn.Module):
    def go(self,x,k=1): return x*k
m=M(M(),["a"],["b"],method="go",method_kwargs={"k":3})
m(TensorDict(a=torch.ones(3))),m(torch.ones(1))

class M(nn.Module):
    def go(self,x,k=1): return x*k
m=M(M(),["a"],["b"],method="gone")
m(TensorDict(a=torch.ones(3)))

m=M(nn.Linear(2,3),["a"],["b"])
m.weight.shape,m.in_features

m=M(nn.Linear(2,3),["a"],["b"])
m.nothing

m=M(nn.Linear(2,3),["a"],["b"]); m.foo=3
m.foo

m=M(nn.Linear(2,3),["a"],["b"]); m.half()
m.weight.dtype

m=M(nn.Dropout(0.5),["a"],["b"]); m.eval()
m(torch.ones(3)), m.training, m.module.training

m=M(nn.Linear(2,3),["a"],["b"]); m2=M(nn.Linear(2,3),["a"],["b"]); m2.load_state_dict(m.state_dict())
torch.equal(m(torch.ones(2)),m2(torch.ones(2)))

m=M(nn.Linear(2,3),["a"],["b"])
m.load_state_dict({"module.weight":torch.ones(3,2)})

m=M(nn.Linear(2,3),["a"],["b"]); h=[]; m.register_forward_hook(lambda mod,i,o: \
h.append((type(i[0]).__name__,type(o).__name__))); m(torch.ones(2)); \
m(TensorDict(a=torch.ones(2)))
h

m=M(nn.Linear(2,3),["a"],["b"]); h=[]; m.register_forward_pre_hook(lambda mod,i: (TensorDict(a=torch.zeros(2)),))
m(TensorDict(a=torch.ones(2)))

m=M(nn.Linear(2,3),["a"],["b"]); m.register_forward_pre_hook(lambda mod,a,k: (a,dict(a=k["a"]*0)),with_kwargs=True)
m(a=torch.ones(2))

m=M(nn.Linear(2,3),["a"],["b"]); m.module.register_forward_hook(lambda mod,i,o: o*0)
m(TensorDict(a=torch.ones(2)))

m=M(nn.Linear(2,3),["a"],["b"]); m.register_forward_hook(lambda mod,i,o: o.set("z",o["b"]*0))
m(TensorDict(a=torch.ones(2)));

m=M(nn.Linear(2,3),["a"],["b"]); m.register_forward_hook(lambda mod,i,o: o*0)
m(torch.ones(2))

m=W(M(lambda x:(x,x),["a"],["b","c"])); m.select_out_keys("b")
(m.out_keys,m.td_module.out_keys,m(TensorDict(a=1.)))

m=W(nn.Linear(2,2))
m.in_keys

m=WrapModule(lambda td: td+1, in_keys=["a"],out_keys=["a"])
(m(TensorDict(a=1.)),m.in_keys,m.out_keys)

m=WrapModule(lambda td: td+1, in_keys=["a"],out_keys=["a"],inplace=True); t=TensorDict(a=1.)
(m(t),t)

m=WrapModule(lambda td: td["a"])
m(TensorDict(a=1.))

m=WrapModule(lambda td: td["a"],inplace=True)
m(TensorDict(a=1.))

@as_tensordict_module(in_keys=["a"],out_keys=["b"])
def f(x): return x+1
(f(TensorDict(a=1.)),f(torch.ones(1)),f.in_keys)

@as_tensordict_module(in_keys="a",out_keys=("n","b"))
def f(x): return x+1
(f(TensorDict(a=1.)),type(f).__name__)

class M(MB):
    in_keys=["x"]; out_keys=["y"]
    def forward(self,td): return td.set("y",td["x"])
(M()(TensorDict(x=1.)), M().in_keys, M.in_keys)

class M(MB):
    def forward(self,td): return td
M().in_keys

class M(MB):
    def forward(self,td): return td
m=M(); m.in_keys=["a"]; m.out_keys=[("n",("b",))]
m.in_keys,m.out_keys

class M(MB):
    def __init__(self): self.in_keys=["a"]; self.out_keys=["b"]; super().__init__()
    @dispatch
    def forward(self,tensordict): return tensordict.set("b",tensordict["a"])
M()(torch.ones(2)), M().out_keys

class M(MB):
    in_keys=["x"]; out_keys=["y"]
    @dispatch(separator="|",source=["q",("n","z")],dest=["y"])
    def forward(self,tensordict): return tensordict.set("y",tensordict["q"])
M()(torch.ones(2)),M()(**{"q":torch.ones(1),"n|z":torch.ones(3)})

class M(MB):
    in_keys=["x"]; out_keys=["y"]
    @dispatch(auto_batch_size=True)
    def forward(self,tensordict,k=2): return \
tensordict.set("y",tensordict.batch_dims*torch.ones(tensordict.batch_size)*k)
M()(torch.ones(2,3)),M()(torch.ones(2,3),4),M()(torch.ones(2,3),k=5)

class M(MB):
    in_keys=["x"]; out_keys=["y"]
    @dispatch
    def forward(self,data): return data

class M(MB):
    in_keys=["x"]; out_keys=["y"]
    @dispatch
    def forward(self,tensordict): return tensordict
M()(torch.ones(2))

class M(MB):
    in_keys=["x"]; out_keys=["y","z"]
    @dispatch
    def forward(self,tensordict): return tensordict.set("y",tensordict["x"])
M()(torch.ones(2))

class M(MB):
    in_keys=["x"]; out_keys=["y","_"]
    @dispatch
    def forward(self,tensordict): return tensordict.set("y",tensordict["x"])
M()(torch.ones(2))

m=M(lambda x:x,["a"],["b"])
with set_skip_existing(["b"]): r=m(TensorDict(a=1.,b=3.))
r

m=M(lambda x:x,["a"],["b"])
with set_skip_existing(["a"]): r=m(TensorDict(a=1.,b=3.))
r

m=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["b"],["c"]))
with set_skip_existing(True): r=m(TensorDict(a=1.,b=3.)), skip_existing()
r

m=M(lambda x:x+1,["a"],["a"])
with set_skip_existing(True): r=m(TensorDict(a=1.))
r

m=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["zz"],["c"]),partial_tolerant=True)
m(TensorDict(a=1.))

m=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["zz"],["c"]),partial_tolerant=True); \
s=lazy_stack([TensorDict(a=1.),TensorDict(a=1.,zz=2.)])
[t for t in m(s).tensordicts]

m=S(M(lambda x:x,["a"],["b"]),M(lambda x:x,["zz"],["c"]))
m(TensorDict(a=1.))

m=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["zz"],["c"]))
m(TensorDict(a=1.))

mk=lambda i,o: M(lambda *x:x[0],i,o)
m=S(mk(["a"],["b"]),mk(["b"],["c"]),mk(["a","d"],["e"]),mk(["c","e"],["f"]))
[(x.in_keys,x.out_keys,len(x)) for x in \
(m.select_subsequence(out_keys=["c"]),m.select_subsequence(in_keys=["a"]),m.select_subsequence(in_keys=["a"],out_keys=["b"]),m.select_subsequence(out_keys=["f"]))]

mk=lambda i,o: M(lambda *x:x[0],i,o)
m=S(mk(["a"],["b"]),mk(["b"],["c"]))
m.select_subsequence(in_keys=["zz"])

mk=lambda i,o: M(lambda *x:x[0],i,o)
m=S(mk(["a"],["b"]),mk(["b"],["c"]),selected_out_keys=["c"])
(m.select_subsequence(out_keys=["b"]).out_keys,m.select_out_keys("b").out_keys)

mk=lambda i,o: M(lambda *x:x[0],i,o)
m=S(mk(["a"],[("n","b")]),mk([("n","b")],["c"]))
(m.select_subsequence(out_keys=[("n",("b",))]).out_keys,m.select_out_keys(("n",("b",))).out_keys)

TensorDict(a=1.).set("c",[torch.ones(()),torch.ones(())])

x=torch.ones(())
TensorDict(a=1.).set("c",[x,x])

t=TensorDict(a=1.); x=t["a"]
t.set("c",[x,x])

TensorDict(a=1.,c=[torch.ones(2),torch.ones(2)])

m=M(lambda x:[x,x],["a"],["c"])
m(TensorDict(a=torch.ones(2),batch_size=[2]))

m=M(lambda x:[x+0,x+1],["a"],["c"])
m(TensorDict(a=torch.ones(2))).get("c").tolist()

m=M(lambda x:[1,2],["a"],["c"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:[1.,2.],["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))

TensorDict(a=1.).set("c",[1,2])

m=M(lambda x:["a","b"],["a"],["c"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:[TensorDict(z=x)],["a"],["c"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:[],["a"],["c"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:x.numpy(),["a"],["c"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:True,["a"],["c"])
m(TensorDict(a=torch.ones(2),batch_size=[2]))

m=M(lambda x:(True,None),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:(x,None),["a"],["c","_"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:torch.max(x,0),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:{"c":x,"d":x,"e":x},["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:{"c":x,("n","d"):x},["a"],["c",("n","d")])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:{"c":x,"n":{"d":x}},["a"],["c",("n","d")])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:{"c":x},["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:{"c":x},["a"],["c","_"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:x+1,["a"],["b"]); s=lazy_stack([TensorDict(a=torch.ones(2)),TensorDict(a=torch.zeros(2))])
m(s)

m=M(lambda x:x+1,["a"],["b"]); s=lazy_stack([TensorDict(a=torch.ones(2)),TensorDict(a=torch.zeros(3))])
m(s)

m=M(lambda x:x+1,["a"],["b"]); t=TensorDict(a=torch.ones(2,3),batch_size=[2]); s=t._get_sub_tensordict(0)
(m(s),t)

m=M(lambda x:x+1,["a"],["a"]); t=TensorDict(a=torch.ones(2,3),batch_size=[2]); s=t._get_sub_tensordict(0)
(m(s),t)

m=M(lambda x:x+1,["a"],["b"]); t=TensorDict(a=torch.ones(2,3),batch_size=[2],names=["q"],device="cpu")
m(t), m(t).names

m=M(lambda x:x+1,["a"],["b"],inplace=False); t=TensorDict(a=torch.ones(2,3),batch_size=[2],names=["q"],device="cpu")
m(t), m(t).names

m=M(lambda x:x+1,["a"],["b"],inplace="empty"); t=TensorDict(a=torch.ones(2,3),batch_size=[2],names=["q"],device="cpu")
m(t), m(t).names

m=M(lambda x:x+1,["a"],[("n","b")],inplace="empty"); \
t=TensorDict(a=torch.ones(2,3),n={"c":torch.ones(2)},batch_size=[2])
m(t)

m=M(lambda x:x+1,["a"],["b"])
m({"a":torch.ones(2)})

m=M(lambda x:x+1,["a"],["b"])
m(None)

m=M(lambda x:x+1,["a"],["b"])
m(3.)

m=M(lambda x:x+1,["a"],["b"])
m(tensordict=TensorDict(a=1.))

m=M(lambda x:x+1,["tensordict"],["b"])
m(tensordict=torch.ones(1))

m=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]),inplace=False); t=TensorDict(a=torch.ones(2),batch_size=[2])
(m(t),t)

m=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]),inplace=True,selected_out_keys=["c"]); \
t=TensorDict(a=torch.ones(2),batch_size=[2])
(m(t),t)

m=S(M(lambda x:x+1,["a"],["b"]),M(lambda \
x:x+1,["b"],["c"]),inplace="empty",selected_out_keys=["c"]); \
t=TensorDict(a=torch.ones(2),batch_size=[2])
(m(t),t)

m=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"])); t=TensorDict(a=torch.ones(2)); o=TensorDict()
(m(t,tensordict_out=o),o,t)

m=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]))
m(TensorDict(a=1.),foo=3)

m=S(M(lambda x:x+1,["a"],["b"]),M(lambda x:x+1,["b"],["c"]))
m(a=torch.ones(1),foo=3)

m=S(M(lambda x:x+1,["a"],["a"]),M(lambda x:x+1,["a"],["a"]))
(m.in_keys,m.out_keys,m(torch.ones(1)))

m=S(M(lambda x:x+1,["a"],["_"]),M(lambda x:x+1,["a"],["b"]))
(m.in_keys,m.out_keys,m(torch.ones(1)))

m=S(M(lambda x:x+1,["a"],["b"]),lambda td: td)
(m.in_keys,m.out_keys,m(TensorDict(a=1.)))

m=S(M(lambda x:x+1,["a"],["b"]),lambda td: None,M(lambda x:x+1,["a"],["b"]))
m(TensorDict(a=1.))

m=M(nn.Linear(2,2),["a"],["b"]); m.reset_parameters_recursive(); p=TensorDict.from_module(m); \
torch.manual_seed(1); q=m.reset_parameters_recursive(p)
(q,q is p,m.weight)

m=M(lambda x:x,["a"],["b"])
m.reset_parameters_recursive()

m=M(nn.Linear(2,2),["a"],["b"]); p=TensorDict.from_module(m).expand(3)
m.reset_parameters_recursive(p)

m=M(nn.Linear(2,2),["a"],["b"]); e=EnsembleModule(m,3)
(e.in_keys,e.out_keys,e(TensorDict(a=torch.ones(4,2),batch_size=[4])),e.params_td)

m=M(nn.Linear(2,2),["a"],["b"]); e=EnsembleModule(m,3,expand_input=False)
e(TensorDict(a=torch.ones(3,4,2),batch_size=[3,4]))

m=M(nn.Linear(2,2),["a"],["b"]); e=EnsembleModule(m,3,expand_input=False)
e(TensorDict(a=torch.ones(4,2),batch_size=[4]))

m=M(nn.Linear(2,2),["a"],["b"]); e=EnsembleModule(m,3); e.reset_parameters_recursive()
e(torch.ones(2))

m=M(nn.Linear(2,2),["a"],["b"]); e=EnsembleModule(m,3)
(list(e.state_dict()),[n for n,_ in e.named_parameters()])

m=M(nn.Linear(2,2),["a"],["b"]); e=S(EnsembleModule(m,3),M(nn.Linear(2,1),["b"],["c"]))
e(TensorDict(a=torch.ones(2)))
""",  # noqa: E501
    ),
    *programs(
        "outputs",
        """
TensorDict(a=1.).set("c",[torch.ones(2),torch.ones(2)])

TensorDict(a=1.).set("c",[torch.ones(2),torch.ones(3)])

m=M(lambda x:[torch.ones(2),torch.ones(3)],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:[torch.ones(2)],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:[torch.ones(2),1],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:[[torch.ones(2)],[torch.ones(2)]],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:[[1],[2]],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:[[1],[2,3]],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:([x,x],x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:[torch.ones(2),torch.ones(2)],["a"],[("n","c")])
m(TensorDict(a=torch.ones(2)))["n","c"]

m=M(lambda x:[torch.ones(2),torch.ones(2)],["a"],["c"])
m(torch.ones(2))

m=M(lambda x:[torch.ones(2),torch.ones(2)],["a"],["c"])
m(TensorDict(a=torch.ones(3),batch_size=[3]))

m=M(lambda x:((x,x),x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

import numpy as np
m=M(lambda x:[np.ones(2),np.ones(2)],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:({"z":x},x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:[{"z":x}],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]

m=WrapModule(lambda td:td.set("c",[torch.ones(2),torch.ones(2)]),in_keys=["a"],out_keys=["c"])
m(TensorDict(a=torch.ones(2)))["c"]

t=TensorDict(a=1.); t["c"]=[torch.ones(2),torch.ones(2)]
t

t=TensorDict(a=1.); t._set_str("c",[torch.ones(2),torch.ones(2)],inplace=False,validated=False)
t

t=TensorDict(a=1.); t.set("c",[torch.ones(2),torch.ones(2)],inplace=False)
t

t=TensorDict(a=1.); t.update({"c":[torch.ones(2),torch.ones(2)]})
t

t=TensorDict(a=torch.ones(2)); t.set("c",[t["a"],t["a"]])
t

m=M(lambda x:TensorDict(c=x,d=x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:lazy_stack([TensorDict(c=x),TensorDict(c=x)]),["a"],["c"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:NonTensorData("q"),["a"],["c"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:TensorDict(c=x,d=x),["a"],["d"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:TensorDict(c=x,d=x),["a"],["d","_"])
m(TensorDict(a=torch.ones(2)))

m=M(lambda x:TensorDict(c=x,n=dict(d=x)),["a"],["c",("n","d")])
m(TensorDict(a=torch.ones(2)))

TensorDict.from_any([torch.ones(2),torch.ones(2)])

TensorDict.from_any((torch.ones(2),torch.ones(2)))

TensorDict.from_any([[1],[2,3]])

TensorDict.from_any([[1],[2]])

TensorDict.from_any([1,2])

TensorDict.from_any(["a","b"])

TensorDict.from_any({"a":[torch.ones(2)],"b":(torch.ones(2),1)})

TensorDict.from_any(3)

m=M(lambda x:((1,2),x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:(("a","b"),x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:({"z":[x,x]},x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:({"z":(x,x)},x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:(((),),x),["a"],["c","d"])
m(TensorDict(a=torch.ones(2)))["c"]

m=M(lambda x:((x,),x),["a"],["c","d"])
m(TensorDict(a=torch.ones(3),batch_size=[3]))["c"]

m=M(lambda x:((x,(x,x)),x),["a"],["c","d"])
m(TensorDict(a=torch.ones(3),batch_size=[3]))["c"]

m=M(lambda x:[x],["a"],["c"])
m(TensorDict(a=torch.ones(1),batch_size=[1]))

m=M(lambda x:[x,x],["a"],["c"])
m(TensorDict(a=torch.ones(2,3),batch_size=[2,3]))

m=M(lambda x:[x,x],["a"],["c"]); s=lazy_stack([TensorDict(a=torch.ones(2,3)),TensorDict(a=torch.ones(2,3))])
m(s)

m=M(lambda x:[1,2],["a"],["c"])
m(TensorDict(a=torch.ones(3),batch_size=[3]))

m=M(lambda x:torch.Size([3]),["a"],["c"])
m(TensorDict(a=torch.ones(3)))["c"]

m=M(lambda x:(torch.Size([3]),1),["a"],["c","d"])
m(TensorDict(a=torch.ones(3)))["c"]

m=M(lambda x:[TensorDict(z=x),TensorDict(z=x)],["a"],["c"])
m(TensorDict(a=torch.ones(2)))["c"]
""",  # noqa: E501
    ),
    *programs(
        "parameters",
        """
p=TensorDictParams(TensorDict(a=torch.ones(2),n={"b":torch.zeros(3)}))
([n for n,_ in p.named_parameters()],p)

p=TensorDictParams(a=torch.ones(2),b=torch.zeros(3))
p

p=TensorDictParams({"a":torch.ones(2),"n":{"b":torch.ones(1,dtype=torch.int64)}})
([n for n,_ in p.named_parameters()],[n for n,_ in p.named_buffers()],p)

p=TensorDictParams(TensorDict(a=torch.ones(2)),no_convert=True)
(type(p["a"]).__name__,list(p.parameters()))

p=TensorDictParams(TensorDict(a=torch.ones(2)),no_convert="skip")
(type(p["a"]).__name__,list(p.parameters()))

p=TensorDictParams(TensorDict(a=torch.ones(2)),lock=True); r=(p.is_locked,); p["b"]=torch.ones(2)
r

p=TensorDictParams(TensorDict(a=torch.ones(2))); p["b"]=torch.ones(2)
(p.is_locked,p,type(p["b"]).__name__)

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.lock_(); p["b"]=torch.ones(2)

p=TensorDictParams(TensorDict(a=torch.ones(2)))
(p.data,type(p.data).__name__,p.grad)

p=TensorDictParams(TensorDict(a=torch.ones(2))); (p["a"]*2).sum().backward(); r=(p.grad,p.data); \
p.zero_grad(); r=(r,p.grad)
r

p=TensorDictParams(TensorDict(a=torch.ones(2))); (p["a"]*2).sum().backward(); p.zero_grad(set_to_none=False)
p.grad

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); \
o=torch.optim.SGD(p.parameters(),0.1); (p["a"].sum()*2+p["n","b"].sum()).backward(); o.step()
p

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); \
o=torch.optim.Adam([p["a"]],0.1); o2=torch.optim.SGD(list(p.values(True,True)),0.1)
len(o2.param_groups[0]["params"])

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1))))
p.state_dict()

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); \
q=TensorDictParams(TensorDict(a=torch.zeros(2),n=dict(b=torch.zeros(1))))
(q.load_state_dict(p.state_dict()),q)

class M(nn.Module):
    def __init__(self): super().__init__(); self.p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1))))
m=M(); sd=m.state_dict(); m2=M(); m2.p.data.zero_()
(list(sd),m2.load_state_dict(sd),m2.p,[n for n,_ in m.named_parameters()])

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.clone()
(type(q).__name__,type(q["a"]).__name__,q["a"].requires_grad,q)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.detach()
(type(q).__name__,q["a"].requires_grad)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.to(torch.float64)
(type(q).__name__,q is p,q)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.to("cpu")
(type(q).__name__,q is p,q.device)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.double()
(type(q).__name__,q is p,q)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.half()
(type(q).__name__,q is p,q)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.requires_grad_(False)
(q is p,p["a"].requires_grad,p.requires_grad)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p+1
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2])); q=p[0]
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2])); q=p.view(-1,1)
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2])); q=torch.stack([p,p])
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2])); q=lazy_stack([p,p])
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2))); q=p.apply(lambda x:x*2)
(type(q).__name__,type(q["a"]).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.apply_(lambda x:x*2)
p

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.data.apply_(lambda x:x.zero_())
p

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); q=p.flatten_keys(".")
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); q=p.select("a")
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); q=p["n"]
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); q=p.get("n")
(type(q).__name__,q)

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1))))
[type(v).__name__ for v in p.values()],[k for k in p.keys(True)]

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); p.pop("a")
([n for n,_ in p.named_parameters()],p)

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); p.del_("n")
([n for n,_ in p.named_parameters()],p)

p=TensorDictParams(TensorDict(a=torch.ones(2),n=dict(b=torch.ones(1)))); p.rename_key_("a","z")
([n for n,_ in p.named_parameters()],p)

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.update({"a":torch.zeros(2),"c":torch.zeros(3)})
(p,[n for n,_ in p.named_parameters()])

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.update_({"a":torch.zeros(2)})

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.set_("a",torch.zeros(2))
p

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.data.set_("a",torch.zeros(2))
p

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.copy_(TensorDict(a=torch.zeros(2)))

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.zero_()
p

import copy
p=TensorDictParams(TensorDict(a=torch.ones(2))); q=copy.deepcopy(p)
(type(q).__name__,q["a"] is p["a"],q,isinstance(q["a"],nn.Parameter))

p=TensorDictParams(TensorDictParams(TensorDict(a=torch.ones(2))))
p

p=TensorDictParams()
p

p=TensorDictParams(TensorDict(a=torch.ones(2,dtype=torch.bool)))
(p,[n for n,_ in p.named_buffers()],type(p["a"]).__name__)

from tensordict.utils import Buffer
p=TensorDictParams(TensorDict(a=Buffer(torch.ones(2)),b=torch.ones(1)))
([n for n,_ in p.named_buffers()],[n for n,_ in p.named_parameters()])

p=TensorDictParams(TensorDict(a=nn.Parameter(torch.ones(2),requires_grad=False),b=torch.ones(1)))
([(n,x.requires_grad) for n,x in p.named_parameters()])

x=torch.ones(2,requires_grad=True)*2
p=TensorDictParams(TensorDict(a=x))
(p,p["a"].is_leaf)

p=TensorDictParams(TensorDict(a=torch.ones(2))); h=[]; p.register_get_post_hook(lambda m,k,v: (h.append(k),v*2)[1])
(p["a"],h)

p=TensorDictParams(TensorDict(a=torch.ones(2)))
p.a

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.train(); p.eval()
(p.training,list(p.children()),[type(m).__name__ for m in p.modules()])

m=nn.Sequential(nn.Linear(2,2),nn.BatchNorm1d(2)); p=TensorDict.from_module(m,as_module=True)
(type(p).__name__,[n for n,_ in p.named_parameters()],[n for n,_ in p.named_buffers()],p.is_locked)

m=nn.Sequential(nn.Linear(2,2),nn.BatchNorm1d(2)); p=TensorDict.from_module(m,use_state_dict=True)
p

m=nn.Sequential(nn.Linear(2,2),nn.ReLU()); p=TensorDict.from_module(m)
p

m=nn.Sequential(nn.Linear(2,2),nn.ReLU()); p=from_module(m,filter_empty=False)
p

m=nn.Sequential(nn.Linear(2,2),nn.ReLU()); p=TensorDict.from_module(m,lock=False); \
p["0","weight"]=torch.zeros(2,2); p.to_module(m)
m[0].weight

m=nn.Linear(2,2); p=TensorDict.from_module(m)*0; q=p.to_module(m)
(q,type(m.weight).__name__,m.weight)

m=nn.Linear(2,2); p=TensorDict(weight=torch.zeros(2,2)); r=p.to_module(m,return_swap=False); \
r=(r,m.weight,type(m.weight).__name__)
r

m=nn.Linear(2,2); p=TensorDict(weight=torch.zeros(2,2)); e=TensorDict(); r=p.to_module(m,swap_dest=e); r=(r is e,e)
r

m=nn.Linear(2,2); p=TensorDict(weight=torch.zeros(2,2),bias=torch.ones(2)); \
r=p.to_module(m,use_state_dict=True); r=(m.weight,r)
r

m=nn.Linear(2,2); p=TensorDict(weight=torch.zeros(2,2),bias=torch.ones(2)); \
r=p.to_module(m,preserve_module_state=False); r=(type(m.weight).__name__,r)
r

m=nn.Sequential(nn.Linear(2,2),nn.BatchNorm1d(2)); p=TensorDict.from_module(m); \
p.data.to_module(m,preserve_module_state=False)
(sorted(k for k,_ in m.named_parameters()),sorted(k for k,_ in \
m.named_buffers()),sorted(m.state_dict()),sorted(map(str,TensorDict.from_module(m).keys(True,True))),type(m[0].weight).__name__)

m=nn.Linear(2,2); p=TensorDict.from_module(m); p.data.to_module(m,preserve_module_state=False); p.to_module(m)
(sorted(k for k,_ in m.named_parameters()),type(m.weight).__name__,m.weight is p['weight'])

m=nn.Linear(2,2); p=TensorDict.from_module(m); p.data.to_module(m,preserve_module_state=False); \
p.to_module(m,preserve_module_state=False)
(sorted(k for k,_ in m.named_parameters()),m.weight is p['weight'])

m=nn.Linear(2,2); p=TensorDict.from_module(m); r=[]
with p.data.to_module(m,preserve_module_state=False): r.append(sorted(k for k,_ in \
m.named_parameters())); m.weight=torch.ones(2,2)
(r,sorted(k for k,_ in m.named_parameters()),m.weight is p['weight'])

m=nn.Linear(2,2); m.again=m.weight; p=TensorDict.from_module(m); p.data.to_module(m,preserve_module_state=False)
(len(list(m.parameters())),m.weight is m.again)

m=nn.Linear(2,2); p=TensorDict.from_module(m); \
s=p.data.to_module(m,preserve_module_state=False,return_swap=True); s.to_module(m)
(sorted(k for k,_ in m.named_parameters()),m.weight is p['weight'])

m=nn.Linear(2,2); p=TensorDict.from_module(m).data; p.to_module(m,preserve_module_state=False); \
p.apply(lambda x:x+1).to_module(m)
(type(m.weight).__name__,sorted(k for k,_ in m.named_parameters()))

m=nn.Linear(2,2); ps=TensorDict.from_modules(m,m).data; r=[]
def f(p,x):
    with p.to_module(m,preserve_module_state=False): r.append(len(list(m.parameters()))); return m(x)
y=torch.vmap(f,(0,None))(ps,torch.ones(2))
(r,y.shape,len(list(m.parameters())))

m=nn.Linear(2,2); p=TensorDict(weight=torch.zeros(2,2),bias=torch.ones(2))
with p.to_module(m): a=m(torch.ones(2))
(a,m.weight.sum()!=0)

m=nn.Linear(2,2); p=TensorDict.from_module(m).clone().lock_()
with p.to_module(m) as q: m.weight=nn.Parameter(torch.zeros(2,2))
(p,m.weight,q)

m=nn.Linear(2,2); p=TensorDict.from_module(m)
try:
    with (p*0).to_module(m): raise ValueError
except ValueError: pass
m.weight

l=nn.Linear(2,2); m=nn.Sequential(l,l); p=TensorDict.from_module(m)
(p, p["0","weight"] is p["1","weight"])

l=nn.Linear(2,2); m=nn.Sequential(l,l); p=TensorDict.from_module(m).clone(); p["1"].zero_()
with p.to_module(m): r=m[0].weight.detach().clone(), m[1].weight.detach().clone()
r

m=nn.ModuleList([nn.Linear(2,2) for _ in range(2)]); p=TensorDict.from_modules(*m)
p

m=[nn.Linear(2,2) for _ in range(2)]; p=TensorDict.from_modules(*m,as_module=True)
(p,type(p).__name__,[n for n,_ in p.named_parameters()])

m=[nn.Linear(2,2) for _ in range(2)]; p=TensorDict.from_modules(*m,lazy_stack=True)
(p,type(p).__name__)

m=[nn.Linear(2,2),nn.Linear(2,3)]; p=TensorDict.from_modules(*m)

m=[nn.Linear(2,2),nn.Linear(2,3)]; p=TensorDict.from_modules(*m,lazy_stack=True)
type(p).__name__,p.keys()

l=nn.Linear(2,2); p=TensorDict.from_modules(l,l,expand_identical=True)
p

m=[nn.Linear(2,2,bias=False) for _ in range(3)]; p=TensorDict.from_modules(*m)
def f(p,x):
    with p.to_module(m[0]): return m[0](x)
torch.vmap(f,(0,None))(p,torch.ones(2))

m=nn.Linear(2,1); p=TensorDict.from_module(m)
def f(p,x):
    with p.to_module(m): return m(x).sum()
torch.func.grad(f)(p,torch.ones(2))

m=nn.Linear(2,1); p=TensorDict.from_module(m).data
def f(p,x):
    with p.to_module(m): return m(x).sum()
torch.func.jacrev(f)(p,torch.ones(2))

p=TensorDict(a=torch.ones(2))
torch.func.hessian(lambda p:(p["a"]**3).sum())(p)

p=TensorDict(a=torch.ones(2))
torch.func.grad_and_value(lambda p:(p["a"]**3).sum())(p)

p=TensorDict(a=torch.ones(2))
torch.func.vjp(lambda p:p*2,p)[1](TensorDict(a=torch.ones(2)))

p=TensorDict(a=torch.ones(2))
torch.func.jvp(lambda p:p*2,(p,),(TensorDict(a=torch.ones(2)),))

s=lazy_stack([TensorDict(a=torch.ones(3)),TensorDict(a=torch.zeros(2))])
torch.vmap(lambda t:t["a"].sum())(s)

t=TensorDict(a=torch.ones(2,3),b=UnbatchedTensor(torch.ones(4)),batch_size=[2])
torch.vmap(lambda t:t+1)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t:t,in_dims=1)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t:t,in_dims=-1)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2,3],names=["x","y"]); r=torch.vmap(lambda t:t+1,in_dims=1)(t); r=(r,r.names)
r

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t:t["a"],randomness="different",chunk_size=1)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2]).lock_(); r=torch.vmap(lambda t:t+1)(t); r=(r,r.is_locked)
r

t=TensorDict(a=torch.ones(2,3),n=dict(),batch_size=[2])
torch.vmap(lambda t:t)(t)

t=TensorDict(a=torch.ones(2,3),s="hi",batch_size=[2])
torch.vmap(lambda t:t)(t)
""",  # noqa: E501
    ),
    *programs(
        "vmap",
        """
s=lazy_stack([TensorDict(a=torch.ones(3)),TensorDict(a=torch.zeros(3))])
torch.vmap(lambda t:TensorDict(z=t["a"]))(s)

s=lazy_stack([TensorDict(a=torch.ones(3)),TensorDict(a=torch.zeros(3))])
torch.vmap(lambda t:t.batch_size.numel()*t["a"])(s)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t:t+1,in_dims=1)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t:t["a"],in_dims=1)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[])
torch.vmap(lambda t:t["a"])(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[])
torch.vmap(lambda t:t)(t)

t=TensorDict(a=torch.ones(2,3),n=dict(b=torch.ones(2,4)),batch_size=[])
torch.vmap(lambda t:t["a"].sum()+t["n","b"].sum())(t)

t=TensorDict(batch_size=[3])
torch.vmap(lambda t:t)(t)

t=TensorDict(a=torch.ones(2,3,4),batch_size=[2,3])
torch.vmap(torch.vmap(lambda t:t+1))(t)

t=TensorDict(a=torch.ones(2,3,4),batch_size=[2,3])
torch.vmap(torch.vmap(lambda t:t+1,in_dims=0,out_dims=0),in_dims=1,out_dims=1)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t,u:t+u["a"],in_dims=(0,None))(t,TensorDict(a=torch.ones(3)))

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t:(t,t["a"].sum(),{"k":t}))(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda d:d["t"]+1)({"t":t})

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda d:d["t"]+1,in_dims=({"t":0},))({"t":t})

t=TensorDict(a=torch.ones(2,3,4),batch_size=[2,3])
torch.vmap(lambda t:t,in_dims=-1)(t)

t=TensorDict(a=torch.ones(2,3,4),b=torch.ones(2,3),batch_size=[2,3])
torch.vmap(lambda t:t,in_dims=-1)(t)

t=TensorDict(a=torch.ones(2,3,4),b=torch.ones(2,3,3),batch_size=[2,3])
torch.vmap(lambda t:t,in_dims=-1)(t)

t=TensorDict(a=torch.ones(2,3,4),b=torch.ones(2,3,4,5),batch_size=[2,3])
torch.vmap(lambda t:t,in_dims=2)(t)

t=TensorDict(a=torch.ones(2,3,4),b=torch.ones(2,3,4,5),batch_size=[2,3])
torch.vmap(lambda t:t,in_dims=2,out_dims=2)(t)

t=TensorDict(a=torch.ones(2,3,4),b=torch.ones(2,3,4,5),batch_size=[2,3])
torch.vmap(lambda t:t.batch_size.numel()+t["a"],in_dims=2,out_dims=2)(t)

t=TensorDict(a=torch.ones(2,3,4),batch_size=[2,3],names=["x","y"]); r=torch.vmap(lambda t:t,in_dims=2)(t); r=r.names
r

t=TensorDict(a=torch.ones(2,3),n=TensorDict(b=torch.ones(2,3,4),batch_size=[2,3]),batch_size=[2])
torch.vmap(lambda t:t+1,in_dims=0)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t:t.set("z",t["a"]*2),in_dims=1,out_dims=0)(t)

t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(lambda t,x:t["a"]*x,in_dims=(1,0))(t,torch.arange(3.))

t=TensorDict(a=torch.arange(6.).view(2,3),n=TensorDict(b=torch.arange(6.).view(2,3),batch_size=[2]),batch_size=[2])
torch.vmap(lambda t:t+1,in_dims=1)(t)

t=TensorDict(a=torch.arange(6.).view(2,3),n=TensorDict(b=torch.arange(6.).view(2,3),batch_size=[2]),batch_size=[2])
torch.vmap(lambda t:t+1,in_dims=1,out_dims=1)(t)

t=TensorDict(a=torch.arange(6.).view(2,3),batch_size=[2])
torch.vmap(lambda t:t["a"].sum(),in_dims=1)(t)

t=TensorDict(a=torch.arange(6.).view(2,3),batch_size=[2])
torch.vmap(lambda t,p:t["a"]*p["w"],in_dims=(1,0))(t,TensorDict(w=torch.ones(3,1),batch_size=[3]))

t=TensorDict(a=torch.arange(6.).view(2,3),batch_size=[2])
torch.vmap(lambda t,p:t["a"]*p["w"],in_dims=(1,0))(t,TensorDict(w=torch.ones(2,1),batch_size=[2]))

t=TensorDict(a=torch.arange(24.).view(2,3,4),batch_size=[2])
torch.vmap(lambda t:t["a"].sum(-1),in_dims=2)(t)

t=TensorDict(a=torch.arange(24.).view(2,3,4),s="x",batch_size=[2])
torch.vmap(lambda t:t["a"].sum(-1),in_dims=2)(t)

m=M(nn.Linear(2,1,bias=False),["a"],["b"]); t=TensorDict(a=torch.ones(2,3),batch_size=[2])
torch.vmap(m,in_dims=1)(t)["b"].shape
""",  # noqa: E501
    ),
    *programs(
        "distributions",
        """
p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),y=dict(logits=torch.zeros(3,2))); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal,"y":d.Categorical}); s=e.sample();
with set_composite_lp_aggregate(False): r=(s.keys(True),e.log_prob(s).shape,[(k,v.shape) for k,v in \
e.log_prob(s).items()])
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),y=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal,"y":d.Normal}); s=e.mean
with set_composite_lp_aggregate(True): r=(s,e.log_prob(s),e.entropy(),e.mode,e.deterministic_sample)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),y=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal,"y":d.Normal}); s=e.mean
with set_composite_lp_aggregate(False): \
r=(e.log_prob(s),e.entropy(),e.log_prob_composite(s),e.entropy_composite(),e.cdf(s),e.icdf(e.cdf(s)))
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),y=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal,"y":d.Normal}); s=e.mean
with set_composite_lp_aggregate(True): \
r=(e.log_prob_composite(s),e.entropy_composite(),e.log_prob_composite(s,include_sum=False),e.log_prob_key,e.entropy_key)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3))); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal},name_map={"x":("n","z")})
(e.mean,e.log_prob_composite(e.mean,include_sum=False))

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3))); e=CompositeDistribution(p,distribution_map={"y":d.Normal})

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3))); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal,"y":d.Normal})

p=TensorDict(x=dict(loc=torch.zeros(3))); e=CompositeDistribution(p,distribution_map={"x":d.Normal})

p=TensorDict(x=dict(loc=torch.zeros(3))); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal},extra_kwargs={"x":{"scale":2.}})
e.variance if hasattr(d,"variance") else e.mean

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal})
(e.sample((2,)),e.rsample((2,)).shape,e.batch_shape,e.event_shape)

p=TensorDict(x=dict(loc=torch.zeros(3,2),scale=torch.ones(3,2)),batch_size=[3])
def mk(loc,scale): return d.Independent(d.Normal(loc,scale),1)
e=CompositeDistribution(p,distribution_map={"x":mk})
with set_composite_lp_aggregate(True): r=e.log_prob(e.mean)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); torch.manual_seed(0)
with set_composite_lp_aggregate(False): r=e.sample_and_log_prob(),e.rsample_and_log_prob((2,))
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal})
e.log_prob(TensorDict())

e=CompositeDistribution.from_distributions(TensorDict(),{"x":d.Normal(0.,1.),("n","y"):d.Normal(torch.zeros(2),1.)})
(e.mean,e.sample().keys(True,True))

p=TensorDict(n=dict(x=dict(loc=torch.zeros(3),scale=torch.ones(3))),batch_size=[]); \
e=CompositeDistribution(p,distribution_map={("n","x"):d.Normal})
e.mean

p=TensorDict(params=dict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),y=dict(loc=torch.zeros(3),scale=torch.ones(3))))
import functools
m=PM(["params"],["x","y"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Normal}},return_log_prob=True,default_interaction_type="mean")
with set_composite_lp_aggregate(False): r=m.log_prob_keys
r

p=lambda:TensorDict(params=dict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),y=dict(loc=torch.zeros(3),scale=torch.ones(3))))
with set_composite_lp_aggregate(False):
    m=PM(["params"],["x","y"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Normal}},return_log_prob=True,default_interaction_type="mean")
    r=(m(p()),m.log_prob_keys,m.out_keys,m.log_prob(m(p())))
r

p=lambda:TensorDict(params=dict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),y=dict(loc=torch.zeros(3),scale=torch.ones(3))))
with set_composite_lp_aggregate(True):
    m=PM(["params"],["x","y"],distribution_class=CompositeDistribution,distribution_kwargs={"distribution_map":{"x":d.Normal,"y":d.Normal}},return_log_prob=True,default_interaction_type="mean")
    r=(m(p()),m.log_prob_keys,m.log_prob_key,m.out_keys,m.log_prob(m(p())))
r

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True,log_prob_key="lp")
m.out_keys,m.log_prob_key

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True,log_prob_keys=["lp"])
m.out_keys,m.log_prob_keys

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,return_log_prob=True,log_prob_keys=["lp","q"])

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,log_prob_key="a",log_prob_keys=["b"])

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,num_samples=4); torch.manual_seed(0)
with set_interaction_type("random"): r=m(TensorDict(loc=torch.zeros(2),scale=torch.ones(2),batch_size=[2]))
r

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,num_samples=torch.Size([2,3]),return_log_prob=True); \
torch.manual_seed(0)
with set_interaction_type("random"): r=m(TensorDict(loc=torch.zeros(2),scale=torch.ones(2),batch_size=[2]))
r

m=PM({"loc":"a","scale":("n","b")},["x"],distribution_class=d.Normal)
(m.in_keys,m(a=torch.ones(1),n_b=torch.ones(1)))

m=PM(["loc","scale"],["x"],distribution_class=d.Normal)
m(loc=torch.ones(1))

m=PM(["mu","scale"],["x"],distribution_class=d.Normal)
m(TensorDict(mu=torch.ones(1),scale=torch.ones(1)))

m=PM(["loc","scale"],["x"],distribution_class=d.Normal)
m(TensorDict(loc=torch.ones(1)))

m=PM(["loc","scale"],["x"],distribution_class=d.Normal)
m(TensorDict(loc=torch.ones(1),scale=-torch.ones(1)))

m=PM(["loc","scale"],None,distribution_class=d.Normal)
m.out_keys

m=PM(["loc","scale"],["x"],distribution_class=d.Normal,default_interaction_type="bad")

m=PM(["logits"],["x"],distribution_class=d.Categorical,default_interaction_type="mode")
m(TensorDict(logits=torch.tensor([[0.,1.],[2.,1.]])))

m=PM(["logits"],["x"],distribution_class=d.Categorical,default_interaction_type="mean")
m(TensorDict(logits=torch.tensor([[0.,1.],[2.,1.]])))

m=PM(["logits"],["x"],distribution_class=d.Categorical,default_interaction_type="median")
m(TensorDict(logits=torch.tensor([[0.,1.],[2.,1.]])))

m=PM(["logits"],["x"],distribution_class=OneHotCategorical,default_interaction_type="mode",return_log_prob=True)
m(TensorDict(logits=torch.tensor([[0.,1.],[2.,1.]])))

m=PM(["param"],["x"],distribution_class=Delta,return_log_prob=True)
m(TensorDict(param=torch.ones(2)))

m=PM(["loc","scale"],["x"],distribution_class=TruncatedNormal,distribution_kwargs=dict(a=-1.,b=1.),default_interaction_type="mean")
m(TensorDict(loc=torch.zeros(2),scale=torch.ones(2)))

s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),PM(["loc","scale"],["x"],distribution_class=d.Normal),M(lambda \
x:x,["x"],["y"])); t=TensorDict(a=torch.zeros(2))
(s(t),s.get_dist(t))

P=lambda i,o: PM({"loc":i,"scale":"scale"},[o],distribution_class=d.Normal,default_interaction_type="mean",return_log_prob=True)
with set_composite_lp_aggregate(False):
    s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),P("loc","x"),P("x","y"),return_composite=True); \
t=TensorDict(a=torch.zeros(2)); \
r=(s(t),type(s.get_dist(t)).__name__,s.log_prob(t),s.log_prob_keys,s.dist_sample_keys)
r

P=lambda i,o: PM({"loc":i,"scale":"scale"},[o],distribution_class=d.Normal,default_interaction_type="mean",return_log_prob=True)
with set_composite_lp_aggregate(True):
    s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),P("loc","x"),P("x","y"),return_composite=True); \
t=TensorDict(a=torch.zeros(2)); \
r=(s(t),type(s.get_dist(t)).__name__,s.log_prob(t),s.log_prob_keys)
r

s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),PM(["loc","scale"],["x"],distribution_class=d.Normal,default_interaction_type="mean"),selected_out_keys=["x"]); \
t=TensorDict(a=torch.zeros(2))
(s(t),s.out_keys,s(torch.zeros(1)))

s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),PM(["loc","scale"],["x"],distribution_class=d.Normal,default_interaction_type="mean"),inplace=False); \
t=TensorDict(a=torch.zeros(2))
(s(t),t)

s=PS(M(lambda x:(x,x.exp()),["a"],["loc","scale"]),PM(["loc","scale"],["x"],distribution_class=d.Normal,default_interaction_type="mean")); \
t=TensorDict(a=torch.zeros(2))
(s(t,_requires_sample=False),)

with set_interaction_type("zzz"): r=interaction_type()
r

with set_interaction_type(None): r=interaction_type()
r

m=NormalParamExtractor()
m(torch.zeros(2,4))

m=NormalParamExtractor()
m(torch.zeros(2,3))

m=NormalParamExtractor(scale_mapping="exp",scale_lb=2.)
m(torch.zeros(2,4),torch.ones(1))

m=NormalParamExtractor(scale_mapping="foo")

m=AddStateIndependentNormalScale(3)
(m(torch.zeros(2,3)),m.state_dict())

m=AddStateIndependentNormalScale(3,scale_mapping="biased_softplus_0.5",make_param=False,init_value=1.)
(m(torch.zeros(2,3),torch.ones(1)),m.state_dict())

m=AddStateIndependentNormalScale()
m(torch.zeros(2,3))

m=AddStateIndependentNormalScale(4)
m(torch.zeros(2,3))

[mappings(k)(torch.tensor([0.,1.])) for k in \
("exp","softplus","relu","expln","biased_softplus_1.0","biased_softplus_1.0_0.1","none","raw_exp") \
if k]

[mappings(k)(torch.tensor([0.,1.])) for k in \
("exp","softplus","relu","expln","biased_softplus_1.0","biased_softplus_1.0_0.1")]

mappings("bad")

mappings("biased_softplus_x")

inv_softplus(1.),inv_softplus(torch.ones(2)),biased_softplus(1.0)(torch.zeros(1)),biased_softplus(1.0,0.5).min_val \
if hasattr(biased_softplus(1.0,0.5),"min_val") else 0

e=TruncatedNormal(torch.zeros(2),torch.ones(2),-1.,2.)
(e.mean,e.variance,e.entropy(),e.cdf(torch.zeros(2)),e.icdf(torch.full((2,),0.5)),e.log_prob(torch.zeros(2)),e.auc,e.a,e.b,e.mode \
if False else 0)

e=TruncatedNormal(torch.zeros(2),torch.ones(2),2.,-1.)

e=TruncatedNormal(torch.zeros(2),torch.ones(2),-1.,1.)
e.log_prob(torch.full((2,),3.))

e=OneHotCategorical(probs=torch.tensor([0.2,0.8])); torch.manual_seed(0)
(e.mode,e.sample((3,)),e.log_prob(torch.tensor([0.,1.])),e.deterministic_sample,e.mean)

e=OneHotCategorical()
d

rand_one_hot(torch.tensor([[0.,1.],[3.,1.]])).shape

e=Delta(torch.ones(2)); r=(e.mode,e.mean,e.sample((3,)),e.log_prob(torch.ones(2)),e.log_prob(torch.zeros(2)),e.deterministic_sample,e.batch_shape,e.event_shape); \
e.update(torch.zeros(2)); r=(r,e.mean)
r

[d.Normal(0.,1.).deterministic_sample, \
d.Categorical(logits=torch.tensor([0.,1.])).deterministic_sample, \
d.Beta(2.,2.).deterministic_sample, d.Bernoulli(0.7).deterministic_sample, \
d.Gamma(2.,2.).deterministic_sample]

d.Independent(d.Normal(torch.zeros(2),1.),1).deterministic_sample, \
d.TransformedDistribution(d.Normal(torch.zeros(2),1.),[d.TanhTransform()]).deterministic_sample

m=M(lambda x:(x,x.exp()),["a"],["loc","scale"])
S(m,PM(["loc","scale"],["x"],distribution_class=d.Normal,default_interaction_type="mean"))(TensorDict(a=torch.zeros(2)))

[mappings(k)(torch.tensor([0.,1.])) for k in \
("biased_softplus_1.0_0.1","biased_softplus_0.5_0.2","biased_softplus_2","biased_softplus")]

mappings("biased_softplus")(torch.tensor([0.,1.]))

mappings("biased_softplus_1.0_0.1_3")(torch.tensor([0.,1.]))

mappings("biased_softplus_1.0_x")(torch.tensor([0.,1.]))

mappings("biased_softplus_")

mappings("biased_softplus_-1.0")(torch.tensor([0.,1.]))

m=NormalParamExtractor("biased_softplus_0.5_0.3",0.01)
m(torch.zeros(2,4))

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean
with set_composite_lp_aggregate(True): q=e.log_prob_composite(s); r=(s,q is s)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean
with set_composite_lp_aggregate(False): q=e.log_prob_composite(s); r=(s,q is s)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean
with set_composite_lp_aggregate(True): q=e.log_prob_composite(s,include_sum=False); r=(s,q is s,q)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean
with set_composite_lp_aggregate(False): q=e.log_prob(s); r=(s,q is s)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean
with set_composite_lp_aggregate(True): q=e.log_prob(s); r=(s,q)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean.lock_()
with set_composite_lp_aggregate(True): q=e.log_prob_composite(s); r=(s,q)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean.set("o",torch.ones(3))
with set_composite_lp_aggregate(True): q=e.log_prob_composite(s); r=(s,q)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean
with set_composite_lp_aggregate(True): q=e.entropy_composite(); r=(s,q)
r

p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3)),batch_size=[3]); \
e=CompositeDistribution(p,distribution_map={"x":d.Normal}); s=e.mean; q=e.cdf(s)
(s,q,q is s)

[mappings(k)(torch.tensor([0.,1.])) for k in ("biased_softplus_1.0_0.1","biased_softplus_0.5_0.2")]

mappings("biased_softplus_1.0_0.1_3")

mappings("biased_softplus_1_x")

mappings("biased_softplusx")

mappings("biased_softplus1.0")

mappings("biased_softplus_1_")

mappings("biased_softplus__1")

mappings("biased_softplus_abc_1")
""",  # noqa: E501
    ),
]

CASES = differing(
    CASES,
    'distribution_map={"y":d.Normal}',
    reason="keys are shown as those of a dictionary, and not by a private class",
    ours="'with keys dict_keys(' in str(error)",
)

CASES = differing(
    CASES,
    'p=TensorDict(x=dict(loc=torch.zeros(3),scale=torch.ones(3))); e=CompositeDistribution(p,distribution_map={"x":d.Normal,"y":d.Normal})',
    reason="keys are shown as those of a dictionary, and not by a private class",
    ours="'with keys dict_keys(' in str(error)",
)

HELPERS = (SETUP,)
"""The beginnings of programs: answers go by what follows them."""
