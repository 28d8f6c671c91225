//! A call of torch that is repeated for every leaf, and what of it can be told without a call.

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyString, PyTuple};

use crate::collection;
use crate::ffi::{self, Operation, RepeatedCall};
use crate::imports::Imports;
use crate::shortcuts::sizes;
use crate::shortcuts::tensors::{Tensor, number_of_dtype, shape_of};

/// The arguments that are appended to the first argument of a call on a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    Nothing,
    /// The leaf's dims from `k` on.
    Shape,
    /// The numbers of the leaf's dims from `k` on.
    Dims,
    /// A 1 for each of the leaf's dims from `k` on.
    Ones,
}

impl Tail {
    pub(crate) fn from_code(code: i64) -> Self {
        match code {
            1 => Self::Shape,
            2 => Self::Dims,
            3 => Self::Ones,
            _ => Self::Nothing,
        }
    }

    pub(crate) fn code(self) -> i64 {
        match self {
            Self::Nothing => 0,
            Self::Shape => 1,
            Self::Dims => 2,
            Self::Ones => 3,
        }
    }
}

/// Methods of tensors that take a list of integers as several arguments too, which torch
/// parses in half the time of a tuple and a quarter of that of a `torch.Size`.
const SPREADING_METHODS: [&str; 8] = [
    "view",
    "reshape",
    "expand",
    "permute",
    "repeat",
    "new_zeros",
    "new_ones",
    "new_empty",
];

/// Methods that are another one by which torch takes numbers one by one, for shapes that name
/// all dims of the leaf.
fn spread_form(name: &str) -> Option<&'static str> {
    match name {
        "broadcast_to" => Some("expand"),
        "tile" => Some("repeat"),
        _ => SPREADING_METHODS.into_iter().find(|known| *known == name),
    }
}

/// The plain tensors that a call gives back as they are, which can be told without it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    /// `leaf.to("cpu")`: those on the CPU.
    OnCpu,
    /// `leaf.contiguous()`: those that are.
    Contiguous,
    /// `leaf.float()` and its like: those of the dtype with this number.
    OfDtype(i32),
}

/// The dtype that a method of tensors casts to, if it is one of those that do.
fn dtype_of_cast(method: &str) -> Option<&'static str> {
    Some(match method {
        "bool" => "torch.bool",
        "half" => "torch.float16",
        "float" => "torch.float32",
        "double" => "torch.float64",
        "bfloat16" => "torch.bfloat16",
        "char" => "torch.int8",
        "short" => "torch.int16",
        "int" => "torch.int32",
        "long" => "torch.int64",
        "byte" => "torch.uint8",
        "cfloat" => "torch.complex64",
        "cdouble" => "torch.complex128",
        _ => return None,
    })
}

/// The call that is made on each leaf of a collection.
pub(crate) struct LeafCall<'a, 'py> {
    imports: &'static Imports,
    op: &'a Bound<'py, PyAny>,
    call: RepeatedCall<'py>,
    // The same call on plain tensors, whose method is looked up once.
    plain: Option<RepeatedCall<'py>>,
    // The same again, with the head of the list spread over the arguments.
    spread: Option<RepeatedCall<'py>>,
    arguments: &'a Bound<'py, PyTuple>,
    tail: Tail,
    k: usize,
    // The plain tensors that the call gives back as they are.
    keeps: Keeps,
    // The last permutation's tail that was made, with the leaf's number of dims: most
    // leaves of a collection have one of few.
    last_dims: Option<(usize, Bound<'py, PyTuple>)>,
}

impl<'a, 'py> LeafCall<'a, 'py> {
    pub(crate) fn new(
        imports: &'static Imports,
        op: &'a Bound<'py, PyAny>,
        arguments: &'a Bound<'py, PyTuple>,
        tail: Tail,
        k: usize,
    ) -> PyResult<Self> {
        let mut spread = None;
        let mut plain = None;
        let mut keeps = Keeps::Nothing;
        let operation = match op.cast::<PyString>() {
            Ok(name) => {
                let text = name.to_str()?;
                let operation = Operation::Method(name.clone());
                let form = spread_form(text).filter(|_| arguments.len() == 1);
                let method = imports
                    .tensor
                    .bind(op.py())
                    .getattr(form.unwrap_or(text))
                    .ok();
                let of_tensors = method.map(Operation::Function);
                let of_tensors = of_tensors.unwrap_or_else(|| operation.clone());
                if form.is_some() {
                    spread = spread_call(of_tensors, &arguments.get_item(0)?, tail)?;
                } else {
                    plain = Some(RepeatedCall::new(of_tensors, arguments));
                }
                if text == "to" && arguments.len() == 1 {
                    if is_cpu(imports, &arguments.get_item(0)?)? {
                        keeps = Keeps::OnCpu;
                    }
                } else if text == "contiguous" && arguments.is_empty() {
                    keeps = Keeps::Contiguous;
                } else if arguments.is_empty()
                    && let Some(dtype) = dtype_of_cast(text)
                    && let Some(number) = number_of_dtype(op.py(), dtype)
                {
                    keeps = Keeps::OfDtype(number);
                }
                if text == "__getitem__" && arguments.len() == 1 && tail == Tail::Nothing {
                    plain = None;
                    Operation::GetItem
                } else {
                    operation
                }
            }
            Err(_) => Operation::Function(op.clone()),
        };
        Ok(Self {
            imports,
            op,
            call: RepeatedCall::new(operation, arguments),
            plain,
            spread,
            keeps,
            arguments,
            tail,
            k,
            last_dims: None,
        })
    }

    #[inline]
    pub(crate) fn call(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.call_torch(leaf) {
            Ok(result) => Ok(result),
            Err(error) => collection::rescued(self.op, leaf, self.arguments, error),
        }
    }

    #[inline]
    fn call_torch(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let is_plain = std::ptr::addr_eq(leaf.get_type_ptr(), self.imports.tensor.as_ptr());
        if is_plain {
            if self.spread.is_some() {
                return self.call_spread(leaf);
            }
            if self.is_kept(leaf) {
                return Ok(leaf.clone());
            }
        }
        match self.first(leaf)? {
            Some(first) => self.call.call_with_first(leaf, &first),
            None => match &mut self.plain {
                Some(plain) if is_plain => plain.call(leaf),
                _ => self.call.call(leaf),
            },
        }
    }

    /// The first argument for a leaf, where it ends with a tail; None where it does not.
    fn first(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let first = match self.tail {
            Tail::Nothing => return Ok(None),
            Tail::Shape => {
                let shape = self.shape_tail(leaf)?;
                let dims = collection::joined_dims(&self.arguments.get_item(0)?, &shape, self.k)?;
                sizes::new_size(self.imports.size.bind(leaf.py()), &dims)?
            }
            Tail::Dims | Tail::Ones => {
                let tail = self.dims_tail(leaf)?;
                collection::concatenated(&self.arguments.get_item(0)?, &tail, 0)?.into_any()
            }
        };
        Ok(Some(first))
    }

    /// The arguments of the call on a leaf.
    pub(crate) fn arguments_for(
        &mut self,
        leaf: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let Some(first) = self.first(leaf)? else {
            return Ok(self.arguments.clone());
        };
        let rest = self.arguments.iter().skip(1);
        PyTuple::new(
            leaf.py(),
            std::iter::once(first).chain(rest).collect::<Vec<_>>(),
        )
    }

    /// Returns whether the call gives the plain tensor `leaf` back.
    #[inline]
    fn is_kept(&self, leaf: &Bound<'py, PyAny>) -> bool {
        let is_kept = match self.keeps {
            Keeps::Nothing => return false,
            Keeps::OnCpu => Tensor::of(leaf).and_then(|leaf| leaf.is_on_cpu()),
            Keeps::Contiguous => Tensor::of(leaf).and_then(|leaf| leaf.is_contiguous()),
            Keeps::OfDtype(number) => Tensor::of(leaf)
                .and_then(|leaf| leaf.dtype())
                .map(|dtype| dtype == number),
        };
        is_kept == Some(true)
    }

    fn call_spread(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = leaf.py();
        let further = match self.tail {
            Tail::Nothing => ffi::Values::new(),
            Tail::Shape => match shape_of(leaf) {
                Some(shape) => shape
                    .iter()
                    .skip(self.k)
                    .map(|length| Ok(length.into_pyobject(py)?.into_any()))
                    .collect::<PyResult<_>>()?,
                None => self.shape_tail(leaf)?.iter().skip(self.k).collect(),
            },
            Tail::Dims | Tail::Ones => self.dims_tail(leaf)?.iter().collect(),
        };
        match &mut self.spread {
            // An empty list cannot be spread: no arguments mean something else.
            Some(spread) if spread.num_arguments() + further.len() > 0 => {
                spread.call_with_further(leaf, &further)
            }
            _ => self.call.call_with_first(leaf, PyTuple::empty(py).as_any()),
        }
    }

    /// The leaf's shape.
    fn shape_tail(&self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let shape = leaf.getattr(self.imports.names.shape.bind(leaf.py()))?;
        match shape.cast_into::<PyTuple>() {
            Ok(shape) => Ok(shape),
            Err(error) => {
                let shape = error.into_inner();
                Ok(shape
                    .py()
                    .get_type::<PyTuple>()
                    .call1((shape,))?
                    .cast_into::<PyTuple>()?)
            }
        }
    }

    /// The numbers of the leaf's dims from `k` on, or as many ones.
    fn dims_tail(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let py = leaf.py();
        let layout = leaf
            .get_type()
            .is(&self.imports.tensor)
            .then(|| shape_of(leaf))
            .flatten();
        let num_dims = match layout {
            Some(shape) => shape.len(),
            None => leaf
                .call_method0(self.imports.names.dim.bind(py))?
                .extract::<usize>()?,
        };
        if let Some((known, dims)) = &self.last_dims
            && *known == num_dims
        {
            return Ok(dims.clone());
        }
        let further = self.k.min(num_dims)..num_dims;
        let dims = if self.tail == Tail::Ones {
            PyTuple::new(py, std::iter::repeat_n(1, further.len()))?
        } else {
            PyTuple::new(py, further)?
        };
        self.last_dims = Some((num_dims, dims.clone()));
        Ok(dims)
    }
}

fn is_cpu(imports: &Imports, device: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(device.get_type().is(&imports.device) && device.eq(imports.cpu.bind(device.py()))?)
}

/// The call with the list `head` as several arguments; None where it is no list of plain
/// numbers.
fn spread_call<'py>(
    operation: Operation<'py>,
    head: &Bound<'py, PyAny>,
    tail: Tail,
) -> PyResult<Option<RepeatedCall<'py>>> {
    let head = if let Ok(head) = head.cast::<PyTuple>() {
        head.clone()
    } else if let Ok(head) = head.cast::<PyList>() {
        head.to_tuple()
    } else if tail == Tail::Nothing {
        return Ok(None);
    } else {
        let tuple = head.py().get_type::<PyTuple>();
        tuple.call1((head,))?.cast_into::<PyTuple>()?
    };
    let plain = head
        .iter_borrowed()
        .all(|number| number.is_exact_instance_of::<PyInt>());
    Ok(plain.then(|| RepeatedCall::new(operation, &head)))
}
