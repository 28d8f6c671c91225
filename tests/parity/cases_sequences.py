"""Programs of sequences, wrappers, selected keys, skipped modules and parameters.

Longer than a line, most of them: a program is a paragraph.
"""

from frame import Case

SETUP = """from nn_setup import *
torch.manual_seed(0)
U=lambda: TensorDict(a=torch.ones(2,3),n={"a":torch.ones(2,3),"b":torch.zeros(2,3)},batch_size=[2])
"""  # noqa: E501

CASES = [
    Case("pipelines", "none", SETUP + program)
    for program in """
s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),inplace='empty'); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),inplace=False); t=U()
(s(t),t)

s=S(M(nn.Linear(3,6),in_keys=[('n','a')],out_keys=['c']),inplace='empty'); t=U()
(s(t),t)

s=M(lambda x:x+1,in_keys=['a'],out_keys=[('n','c')],inplace='empty'); t=U()
(s(t),t)

s=M(lambda x:x+1,in_keys=['a'],out_keys=[('n','c')],inplace=False); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c'],inplace=False),M(lambda x:x+1,in_keys=['c'],out_keys=['d'])); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c'],inplace='empty'),M(lambda x:x+1,in_keys=['c'],out_keys=['d'])); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c'],inplace='empty'),M(lambda x:x+1,in_keys=['a'],out_keys=['d'])); t=U()
(s(t),t)

s=S(S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),inplace=False),M(lambda x:x+1,in_keys=['a'],out_keys=['d'])); t=U()
(s(t),t)

s=S(S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),inplace='empty'),M(lambda x:x+1,in_keys=['a'],out_keys=['d'])); t=U()
(s(t),t)

s=S(S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),inplace=False),M(lambda \
x:x+1,in_keys=[('n','b')],out_keys=['d'])); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['a']),inplace=False); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['a']),selected_out_keys=['a'],inplace=True); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),M(lambda \
x:x+1,in_keys=['c'],out_keys=['d']),selected_out_keys=['d']); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),M(lambda \
x:x+1,in_keys=['c'],out_keys=[('n','d')]),selected_out_keys=[('n','d')]); t=U()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c'],inplace=False),M(lambda \
x:x+1,in_keys=['c'],out_keys=['d'],inplace=False)); t=U().lock_()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c'],inplace=False),M(lambda \
x:x+1,in_keys=['c'],out_keys=['d'])); t=U().lock_()
(s(t),t)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),inplace=False); t=U(); o=TensorDict(batch_size=[2])
(s(t,tensordict_out=o),t,o)

s=S(M(lambda x:x+1,in_keys=['a'],out_keys=['c']),M(lambda x:x+1,in_keys=['c'],out_keys=['d'])); \
t=U(); o=TensorDict(batch_size=[2])
(s(t,tensordict_out=o),t,o)

m=PM(in_keys=['loc','scale'], out_keys=['s'], distribution_class=d.Normal, log_prob_key='l')
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3)))

m=PM(in_keys=['loc','scale'], out_keys=['s'], distribution_class=d.Normal, log_prob_key='l', return_log_prob=True)
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3)))

m=PM(in_keys=['loc','scale'], out_keys=['s','lp'], distribution_class=d.Normal, log_prob_key='l')
m.log_prob_key

m=PM(in_keys=['loc','scale'], out_keys=['s','lp'], distribution_class=d.Normal, log_prob_key='l')
m.log_prob_keys,m.out_keys

m=PM(in_keys=['loc','scale'], out_keys=['s','lp'], distribution_class=d.Normal, log_prob_keys=['l'])
m.log_prob_keys,m.out_keys

m=PM(in_keys=['loc','scale'], out_keys=['s'], distribution_class=d.Normal, log_prob_keys=['l'],return_log_prob=True)
m.log_prob_keys,m.out_keys,m.log_prob_key

m=PM(in_keys=['loc','scale'], out_keys=['_'], distribution_class=d.Normal, return_log_prob=True)
m(TensorDict(loc=torch.zeros(3),scale=torch.ones(3)))

m=M(lambda x:x,in_keys=['a'],out_keys=['b']); m=m.select_out_keys()
m.out_keys, m(TensorDict(a=torch.ones(2)))

m=W(M(lambda x:x,in_keys=['a'],out_keys=['b'])); m.out_keys=['q']
m.td_module.out_keys,m.out_keys,m(TensorDict(a=torch.ones(2)))

m=W(M(lambda x:x,in_keys=['a'],out_keys=['b'])); m.in_keys=['q']
m.td_module.in_keys,m.in_keys

class W(W): pass
m=W(M(lambda x:x,in_keys=['a'],out_keys=['b'])); m.foo=3
hasattr(m.td_module,'foo'), m.foo

M(lambda x:x,in_keys=['a'],out_keys=['b'],method='forward')(TensorDict(a=torch.ones(2)))

class F:
    def forward(self,x): return x*2
    def __call__(self,x): return x
M(F(),in_keys=['a'],out_keys=['b'],method='forward')(TensorDict(a=torch.ones(2)))

class F:
    def go(self,x): return x*2
M(F(),in_keys=['a'],out_keys=['b'],method='go')(TensorDict(a=torch.ones(2)))

class G(nn.Module):
    def go(self,x,y=1): return x*2*y
M(G(),in_keys=['a'],out_keys=['b'],method='go',method_kwargs={'y':3})(TensorDict(a=torch.ones(2)))

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2]),no_convert=True)
torch.vmap(lambda t:t['a']*2)(p)

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2]))
torch.vmap(lambda t:t['a']*2)(p)

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2]))
torch.vmap(lambda t:t)(p)

p=TensorDictParams(TensorDict(a=torch.ones(2,3),b={'c':torch.ones(2)},batch_size=[2]),no_convert=True); \
m=EnsembleModule(M(nn.Linear(3,3),in_keys=['a'],out_keys=['b']),2)
m(p)

m=PM(in_keys=['params'], out_keys=['s'], distribution_class=CompositeDistribution, \
distribution_kwargs={'distribution_map':{'s':d.Normal}}, log_prob_key='l')
m.log_prob_keys,m.out_keys

m=PM(in_keys=['params'], out_keys=['s','t'], distribution_class=CompositeDistribution, \
distribution_kwargs={'distribution_map':{'s':d.Normal,'t':d.Normal}}, log_prob_key='l')
m.log_prob_keys,m.out_keys

m=PM(in_keys=['loc','scale'], out_keys=None, distribution_class=d.Normal, log_prob_key='l')
m.log_prob_keys,m.out_keys

m=PM(in_keys=['loc','scale'], out_keys=['s','t'], distribution_class=d.Normal, log_prob_keys=['l'],return_log_prob=True)
m.log_prob_keys,m.out_keys

m=PM(in_keys=['loc','scale'], out_keys=['s'], distribution_class=d.Normal, log_prob_keys=['l','m'])
m.log_prob_keys,m.out_keys

m=PM(in_keys=['loc','scale'], out_keys=['s'], distribution_class=d.Normal, log_prob_keys=['l'], log_prob_key='k')
m.log_prob_keys,m.out_keys

M(lambda x:x,in_keys=['_'],out_keys=['a'])

M(lambda x:x,in_keys=['_','_'],out_keys=['a'])

S(M(lambda x:x,in_keys=['_','a'],out_keys=['a']))

class M(MB):
    in_keys=['_']; out_keys=['c']
    def forward(self,td): return td
m=M()
m.in_keys

m=M(lambda x:x,in_keys=['a'],out_keys=['b']); w=W(m); w.in_keys=['z']
m.in_keys,w.in_keys

m=S(M(lambda x:x,in_keys=['a'],out_keys=['b'])); w=W(m); w.out_keys=['z']
m.out_keys,w.out_keys

m=S(M(lambda x:x,in_keys=['a'],out_keys=['b'])); m.out_keys=['z']
m.out_keys, m(TensorDict(a=torch.ones(2)))

m=S(M(lambda x:x,in_keys=['a'],out_keys=['b'])); m.in_keys=['z']
m.in_keys

m=W(M(nn.Linear(2,2),in_keys=['a'],out_keys=['b'])); m.select_out_keys('b')
m.td_module._forward_hooks, m.out_keys_source

m=W(M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c'])); m.select_out_keys('b'); \
r=m.out_keys, m.td_module.out_keys, m(TensorDict(a=torch.ones(2))); m.reset_out_keys()
r,m.out_keys,m.td_module.out_keys

torch.vmap(lambda t:t['a']*2)(TensorDictParams(TensorDict(a=torch.ones(2,3),b={'c':torch.ones(2)},batch_size=[2]),no_convert=True))

torch.vmap(lambda t:t['b','c']*2)(TensorDictParams(TensorDict(a=torch.ones(2,3),b={'c':torch.ones(2)},batch_size=[2])))

torch.vmap(lambda t:t,(None,),randomness='same')(TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2])))

m=EnsembleModule(M(nn.Linear(3,3),in_keys=['a'],out_keys=['b']),2)
m(TensorDictParams(TensorDict(a=torch.ones(2,3)),no_convert=True))

m=EnsembleModule(M(nn.Linear(3,3),in_keys=['a'],out_keys=['b']),2)
m(TensorDictParams(TensorDict(a=torch.ones(2,3))))

torch.vmap(lambda t,x:t.set('z',x) \
,(0,0))(TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2]),no_convert=True),torch.ones(2))

torch.vmap(lambda x,t:t.set('z',x) \
,(0,None))(torch.ones(2),TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2]),no_convert=True))

m=M(lambda x:x,in_keys=['a'],out_keys=['b']); w=W(m); m.out_keys=['z']
w.out_keys

m=M(lambda x:x,in_keys=['a'],out_keys=['b']); w=W(m); m.in_keys=['z']
w.in_keys

m=M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c']); w=W(m); w.select_out_keys('b')
w.out_keys, m.out_keys, w.out_keys_source, m.out_keys_source

m=M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c']); w=W(m); m.select_out_keys('b')
w.out_keys, m.out_keys, w.out_keys_source, m.out_keys_source

m=M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c']); w=W(m)
sorted(k for k in w.__dict__ if 'key' in k)

m=nn.Linear(2,2); w=W(m)
w.out_keys

m=M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c']); w=W(m); w.out_keys=['z','y']
w(TensorDict(a=torch.ones(2))), m.out_keys, w.out_keys_source

m=M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c']); w=W(m); w.in_keys=['z']
w.in_keys, m.in_keys

class W(W):
    def __init__(self,m): super().__init__(m); self.out_keys=self.out_keys+['extra']
m=M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c']); w=W(m)
w.out_keys,m.out_keys

class W(W):
    out_keys=['q']
m=M(lambda x:(x,x),in_keys=['a'],out_keys=['b','c']); w=W(m)
w.out_keys,m.out_keys

class P(nn.Module):
    def __init__(s): super().__init__(); s.in_keys=['a']; s.out_keys=['b']
    def forward(s,td): return td
w=W(P()); w.out_keys=['z']
w.out_keys, w.td_module.out_keys

class P(nn.Module):
    in_keys=['a']; out_keys=['b']
    def forward(s,td): return td
w=W(P()); w.select_out_keys('b')
w.out_keys

with set_skip_existing(True): r=M(lambda \
x:(x+1,x+2),["a"],["b","c"]).select_out_keys("b")(TensorDict(a=torch.ones(2),b=torch.ones(2)))
r

with set_skip_existing(True): r=S(M(lambda \
x:(x+1,x+2),["a"],["b","c"])).select_out_keys("b")(TensorDict(a=torch.ones(2),b=torch.ones(2)))
r

with set_skip_existing(True): r=S(M(lambda \
x:(x+1,x+2),["a"],["b","c"]),selected_out_keys=["b"])(TensorDict(a=torch.ones(2),b=torch.ones(2)))
r

with set_skip_existing(["b"]): r=S(M(lambda \
x:(x+1,x+2),["a"],["b","c"])).select_out_keys()(TensorDict(a=torch.ones(2),b=torch.ones(2)))
r

with set_skip_existing(True): r=M(lambda x:x+1,["a"],["_"])(TensorDict(a=torch.ones(2),b=torch.ones(2)))
r

with set_skip_existing(True): r=PM(["loc","scale"],["s"],distribution_class=d.Normal,return_log_prob=True)(TensorDict(loc=torch.ones(2),scale=torch.ones(2),s=torch.full((2,),7.)))
r

with set_composite_lp_aggregate(True): m=PM(["loc","scale"],["s"],distribution_class=d.Normal,log_prob_keys=["l"])
m.log_prob_keys

p=TensorDictParams(TensorDict(a=torch.ones(2),n={'b':torch.zeros(1)}))
p.apply_(lambda t,o:t+o,TensorDict(a=torch.ones(2),n={'b':torch.ones(1)})), p.apply_(lambda x:x*2) is p

p=TensorDictParams(TensorDict(a=torch.ones(2),n={'b':torch.zeros(1)}))
p.lock_().apply_(lambda t:t+1)

p=TensorDictParams(TensorDict(a=torch.ones(2),n={'b':torch.zeros(1)}))
p.apply_(lambda t:None)

p=TensorDictParams(TensorDict(a=torch.ones(2),i=torch.ones(2,dtype=torch.int)))
p.apply_(lambda t:t+1)

p=TensorDictParams(TensorDict(a=torch.ones(2)),no_convert=True)
p.apply_(lambda t:t+1)

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.apply_(torch.nn.init.zeros_)
p

p=TensorDictParams(TensorDict(a=torch.ones(2,3),batch_size=[2]))
p.apply_(lambda t:t*2, call_on_nested=False)

p=TensorDictParams(TensorDict(a=torch.ones(2)))
p.mul_(2), p.add_(1)

p=TensorDictParams(TensorDict(a=torch.ones(2))); p.requires_grad_(False)
p.apply_(lambda t:t*3), p['a'].requires_grad

p=TensorDictParams(TensorDict(a=torch.ones(2))); (p['a']*2).sum().backward(); p.apply_(lambda t:t*3)
p['a'].grad, p.grad

m=nn.Linear(2,2); p=TensorDict.from_module(m,as_module=True); p.apply_(lambda t:t.zero_())
m.weight

m=nn.Linear(2,2); p=TensorDict.from_module(m); p.apply_(lambda t:t.zero_())
m.weight

m=nn.Linear(2,2); p=TensorDict.from_module(m); p.zero_()
m.weight

m=nn.Linear(2,2); p=TensorDict.from_module(m).data; p.apply_(lambda t:t.zero_())
m.weight

from tensordict.nn import TruncatedNormal
l=torch.tensor([-2.,.5,3.]); q=TruncatedNormal(l,torch.full((3,),.1),-1.,1.); s=q.sample()
s, q.log_prob(s), q.mean, q.variance, q.entropy(), q.icdf(torch.full((3,),.5))

from tensordict.nn import TruncatedNormal
l=torch.tensor([-2.,.5],requires_grad=True); TruncatedNormal(l,torch.full((2,),.1),-1.,1.).rsample().sum().backward()
l.grad

from tensordict.nn import TruncatedNormal
q=TruncatedNormal(torch.zeros(3).double(),torch.ones(3).double(),-1.,1.)
q.sample(), q.log_prob(.5), q.cdf(.2)

from tensordict.nn.distributions.truncated_normal import TruncatedStandardNormal
q=TruncatedStandardNormal(torch.tensor([4.5,-8.,5.,3.]),torch.tensor([8.,-4.5,9.,8.]))
q.icdf(torch.tensor(.1)), q.icdf(torch.tensor(1.)), q.auc, q.mean
""".strip().split("\n\n")  # noqa: E501
]

HELPERS = (SETUP,)
"""The beginnings of programs: answers go by what follows them."""
