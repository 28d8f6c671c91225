//! Calling torch on every leaf: one result for each container, or several.
//!
//! The specification of each function is its namesake in `tensordict.interop.twins`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "functions of the module own what they make of Python's arguments"
)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::container::{self, Kind, Names, Splice, State, kind};
use crate::ffi::{self, MovedItems, Operation, RecursionGuard, RepeatedCall};
use crate::imports::{Imports, imports};
use crate::locking;
use crate::tensors::{Tensor, number_of_dtype, shape_of, with_layout};

/// What is appended to the first argument of a call on a leaf.
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
    fn from_code(code: i64) -> Self {
        match code {
            1 => Self::Shape,
            2 => Self::Dims,
            3 => Self::Ones,
            _ => Self::Nothing,
        }
    }

    fn code(self) -> i64 {
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

/// What is called on each leaf of a container.
struct LeafCall<'a, 'py> {
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
    // Which plain tensors the call gives back as they are.
    keeps: Keeps,
    // The last permutation's tail that was made, with the leaf's number of dims: most
    // leaves of a container have one of few.
    last_dims: Option<(usize, Bound<'py, PyTuple>)>,
}

impl<'a, 'py> LeafCall<'a, 'py> {
    fn new(
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
    fn call(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.call_torch(leaf) {
            Ok(result) => Ok(result),
            Err(error) => container::rescued(self.imports, self.op, leaf, self.arguments, error),
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
        match self.tail {
            Tail::Nothing => match &mut self.plain {
                Some(plain) if is_plain => plain.call(leaf),
                _ => self.call.call(leaf),
            },
            Tail::Shape => {
                let shape = self.shape_tail(leaf)?;
                let dims = container::joined_dims(&self.arguments.get_item(0)?, &shape, self.k)?;
                let size = ffi::new_size(self.imports.size.bind(leaf.py()), &dims)?;
                self.call.call_with_first(leaf, &size)
            }
            Tail::Dims | Tail::Ones => {
                let tail = self.dims_tail(leaf)?;
                let dims = container::concatenated(&self.arguments.get_item(0)?, &tail, 0)?;
                self.call.call_with_first(leaf, &dims)
            }
        }
    }

    /// Whether the call gives the plain tensor `leaf` back.
    #[inline]
    fn is_kept(&self, leaf: &Bound<'py, PyAny>) -> bool {
        let is_kept = match self.keeps {
            Keeps::Nothing => return false,
            Keeps::OnCpu => with_layout(leaf, |_, is_on_cpu| is_on_cpu),
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

/// The number of the root's batch dims: `k`, or those of `td` where `k` is negative.
fn root_dims(imports: &Imports, td: &Bound<'_, PyAny>, k: i64) -> PyResult<usize> {
    match usize::try_from(k) {
        Ok(k) => Ok(k),
        Err(_) => Ok(container::batch_size(imports, td)?.len()),
    }
}

// Calling -----------------------------------------------------------------------------

struct MapLeaves<'a, 'py> {
    imports: &'static Imports,
    op: &'a Bound<'py, PyAny>,
    args: &'a Bound<'py, PyTuple>,
    prefix: Option<&'a Bound<'py, PyAny>>,
    names: &'a Names<'py>,
    tail: Tail,
    // Whether what is nested, and locked on its own, stays locked.
    lock: bool,
    k: usize,
    call: LeafCall<'a, 'py>,
    splice: Splice<'a, 'py>,
}

impl<'py> MapLeaves<'_, 'py> {
    fn walk(&mut self, td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        let size = self.splice.size(self.prefix, &state.batch_size)?;
        let entries = ffi::copy_dict(&state.entries)?;
        ffi::replace_values(&entries, |value| {
            Ok(Some(match kind(imports, value)? {
                Kind::Leaf => match self.whole(value, &size)? {
                    Some(whole) => whole,
                    None => self.call.call(value)?,
                },
                Kind::Dense => {
                    let part = self.walk(value)?;
                    locking::lock_like(imports, value, &part, self.lock)?;
                    part
                }
                Kind::Foreign => value.call_method1(
                    imports.names.method_map_leaves.bind(py),
                    (
                        self.op,
                        self.args,
                        self.prefix,
                        self.names.to_object(py)?,
                        self.tail.code(),
                        self.lock,
                        self.k,
                    ),
                )?,
            }))
        })?;
        let dim_names = self.splice.dim_names(&state.dim_names, &size)?;
        let values = [entries.into_any(), size, state.device, dim_names];
        container::new_like(imports, td, values)
    }

    /// What becomes of a leaf that is held whole, where batch sizes change.
    fn whole(
        &self,
        value: &Bound<'py, PyAny>,
        size: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.prefix.is_none() {
            return Ok(None);
        }
        container::resized_unbatched(self.imports, value, size)
    }
}

/// Calls `op` on every leaf and gives a container of the same structure.
#[pyfunction]
#[pyo3(
    signature = (td, op, args = None, prefix = None, names = Names::Keep, tail = 0, lock = false, k = -1),
    text_signature = "(td, op, args=(), prefix=None, names=True, tail=0, lock=False, k=-1)"
)]
#[expect(clippy::too_many_arguments, reason = "those of the twin")]
fn map_leaves<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: Option<Bound<'py, PyTuple>>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: Names<'py>,
    tail: i64,
    lock: bool,
    k: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    let args = args.unwrap_or_else(|| PyTuple::empty(py));
    if !container::is_dense(imports, td)? {
        return td.call_method1(
            imports.names.method_map_leaves.bind(py),
            (op, args, prefix, names.to_object(py)?, tail, lock, k),
        );
    }
    let k = root_dims(imports, td, k)?;
    let tail = Tail::from_code(tail);
    map_from(imports, td, op, &args, prefix, &names, tail, lock, k)
}

/// [`map_leaves`] of a member of a stack. Unlocked.
pub(crate) fn map_any<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: &Names<'py>,
    tail: i64,
    k: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !container::is_dense(imports, td)? {
        return td.call_method1(
            imports.names.method_map_leaves.bind(py),
            (op, args, prefix, names.to_object(py)?, tail, false, k),
        );
    }
    let k = root_dims(imports, td, k)?;
    let tail = Tail::from_code(tail);
    map_from(imports, td, op, args, prefix, names, tail, false, k)
}

/// [`map_leaves`] of a dense container that is the root of the walk.
#[expect(clippy::too_many_arguments, reason = "those of the twin")]
pub(crate) fn map_dense<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: &Names<'py>,
    tail: Tail,
    lock: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let k = container::batch_size(imports, td)?.len();
    map_from(imports, td, op, args, prefix, names, tail, lock, k)
}

#[expect(clippy::too_many_arguments, reason = "those of the twin")]
fn map_from<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: &Names<'py>,
    tail: Tail,
    lock: bool,
    k: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let mut walk = MapLeaves {
        imports,
        op,
        args,
        prefix,
        names,
        tail,
        lock: lock && prefix.is_some() && !container::is_locked(imports, td)?,
        k,
        call: LeafCall::new(imports, op, args, tail, k)?,
        splice: Splice::new(imports, k, names),
    };
    let result = walk.walk(td)?;
    locking::lock_like(imports, td, &result, lock)?;
    Ok(result)
}

struct SplitLeaves<'a, 'py> {
    imports: &'static Imports,
    op: &'a Bound<'py, PyAny>,
    args: &'a Bound<'py, PyTuple>,
    prefixes: &'a Bound<'py, PyList>,
    names: &'a Names<'py>,
    // As that of `MapLeaves`.
    lock: bool,
    k: usize,
    call: LeafCall<'a, 'py>,
    splice: Splice<'a, 'py>,
}

/// The containers that a walk makes of one.
type Results<'py> = Vec<Bound<'py, PyAny>>;

/// What becomes of one entry: its part in each of the results.
enum Parts<'py> {
    /// What torch returns of several values are tuples, or of types derived from it.
    Torch(MovedItems<'py>),
    Others(std::vec::IntoIter<Bound<'py, PyAny>>),
}

impl<'py> Parts<'py> {
    fn new(parts: Bound<'py, PyAny>, expected: usize) -> PyResult<Self> {
        let parts = match parts.cast_into::<PyTuple>() {
            Ok(tuple) => {
                check_length(tuple.len(), expected)?;
                match MovedItems::of(tuple) {
                    Ok(items) => return Ok(Self::Torch(items)),
                    Err(tuple) => tuple.into_any(),
                }
            }
            Err(error) => error.into_inner(),
        };
        let parts = parts.try_iter()?.collect::<PyResult<Results<'py>>>()?;
        check_length(parts.len(), expected)?;
        Ok(Self::Others(parts.into_iter()))
    }

    /// The part in the next of the results.
    #[inline]
    fn next(&mut self) -> Option<Bound<'py, PyAny>> {
        match self {
            Self::Torch(parts) => parts.next(),
            Self::Others(parts) => parts.next(),
        }
    }
}

impl<'py> SplitLeaves<'_, 'py> {
    fn walk(&mut self, td: &Bound<'py, PyAny>) -> PyResult<Results<'py>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        let entries = ffi::copy_dict(&state.entries)?;
        let num_parts = self.prefixes.len();
        let mut rows = SmallVec::<[Parts<'py>; 8]>::with_capacity(entries.len());
        let mut place = 0;
        while let Some(value) = ffi::value_at(&entries, &mut place) {
            rows.push(self.parts(&value, &state)?);
        }
        // One part after the other is made whole, while what it consists of is at hand.
        let mut results = Results::with_capacity(num_parts);
        for (at, prefix) in self.prefixes.iter().enumerate() {
            let part = if at + 1 == num_parts {
                entries.clone()
            } else {
                ffi::copy_dict(&entries)?
            };
            ffi::put_values(&part, rows.iter_mut().filter_map(Parts::next))?;
            let size = self.splice.size(Some(&prefix), &state.batch_size)?;
            let dim_names = self.splice.dim_names(&state.dim_names, &size)?;
            let values = [part.into_any(), size, state.device.clone(), dim_names];
            results.push(container::new_like(imports, td, values)?);
        }
        Ok(results)
    }

    /// The parts of `value`, an entry of a container with the attributes `state`.
    fn parts(&mut self, value: &Bound<'py, PyAny>, state: &State<'py>) -> PyResult<Parts<'py>> {
        let imports = self.imports;
        let given = match kind(imports, value)? {
            Kind::Leaf if container::is_unbatched(imports, value) => {
                let mut parts = Results::with_capacity(self.prefixes.len());
                for prefix in self.prefixes.iter() {
                    let size = self.splice.size(Some(&prefix), &state.batch_size)?;
                    parts.extend(container::resized_unbatched(imports, value, &size)?);
                }
                return Ok(Parts::Others(parts.into_iter()));
            }
            Kind::Leaf => self.call.call(value)?,
            Kind::Dense => {
                let parts = self.walk(value)?;
                if self.lock {
                    for part in &parts {
                        locking::lock_like(imports, value, part, true)?;
                    }
                }
                return Ok(Parts::Others(parts.into_iter()));
            }
            Kind::Foreign => value.call_method1(
                imports.names.method_split_leaves.bind(value.py()),
                (
                    self.op,
                    self.args,
                    self.prefixes,
                    self.names.to_object(value.py())?,
                    self.lock,
                    self.k,
                ),
            )?,
        };
        Parts::new(given, self.prefixes.len())
    }
}

/// The error of `zip(entries, parts, strict=True)` where the lengths differ.
fn check_length(found: usize, expected: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    let relation = if found < expected {
        "shorter"
    } else {
        "longer"
    };
    Err(PyValueError::new_err(format!(
        "zip() argument 2 is {relation} than argument 1"
    )))
}

/// As [`map_leaves`] for an `op` that gives a sequence: one container per item.
#[pyfunction]
#[pyo3(
    signature = (td, op, args, prefixes, names = Names::Keep, lock = false, k = -1),
    text_signature = "(td, op, args, prefixes, names=True, lock=False, k=-1)"
)]
fn split_leaves<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefixes: &Bound<'py, PyList>,
    names: Names<'py>,
    lock: bool,
    k: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !container::is_dense(imports, td)? {
        return td.call_method1(
            imports.names.method_split_leaves.bind(py),
            (op, args, prefixes, names.to_object(py)?, lock, k),
        );
    }
    let k = root_dims(imports, td, k)?;
    // A copy: the operation may change the list while it is walked.
    let prefixes = prefixes.get_slice(0, prefixes.len());
    split_from(imports, td, op, args, &prefixes, &names, lock, k)
}

/// [`split_leaves`] of a dense container that is the root of the walk.
pub(crate) fn split_dense<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefixes: &Bound<'py, PyList>,
    names: &Names<'py>,
    lock: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let k = container::batch_size(imports, td)?.len();
    split_from(imports, td, op, args, prefixes, names, lock, k)
}

#[expect(clippy::too_many_arguments, reason = "those of the twin")]
fn split_from<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefixes: &Bound<'py, PyList>,
    names: &Names<'py>,
    lock: bool,
    k: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let mut walk = SplitLeaves {
        imports,
        op,
        args,
        prefixes,
        names,
        lock: lock && !container::is_locked(imports, td)?,
        k,
        call: LeafCall::new(imports, op, args, Tail::Nothing, k)?,
        splice: Splice::new(imports, k, names),
    };
    let results = walk.walk(td)?;
    for result in &results {
        locking::lock_like(imports, td, result, lock)?;
    }
    Ok(PyList::new(td.py(), results)?.into_any())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(map_leaves, module)?)?;
    module.add_function(wrap_pyfunction!(split_leaves, module)?)?;
    Ok(())
}
