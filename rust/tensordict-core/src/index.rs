//! The shape that an index gives: `NumPy`'s indexing as torch does it, on sizes alone.
//!
//! An index is planned once against the batch size of a collection and then applied to all
//! its leaves, which have those dims in front. So a plan has no ellipsis (it would reach
//! into the leaves' own dims) and no masks of several dims; its steps mean the same for
//! every leaf.

use smallvec::SmallVec;

use crate::batch::Dims;
use crate::{Refused, Result};

/// One item of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Takes all the dims that no other item indexes.
    Ellipsis,
    /// A new dim of size 1.
    NewDim,
    /// Python's `True` or `False`: a new dim of size 1 or 0.
    Bool(bool),
    /// One position of a dim, counted from the back where negative.
    Position(i64),
    /// A range of a dim.
    Slice(Range),
    /// A tensor of positions of a dim, of this shape.
    Positions(Dims),
    /// A mask of this shape over as many dims, true at `count` places.
    Mask {
        /// The mask's shape.
        shape: Dims,
        /// The number of true entries.
        count: i64,
    },
}

/// `start:stop:step` as written: None where something is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first position.
    pub start: Option<i64>,
    /// The position after the last.
    pub stop: Option<i64>,
    /// The distance of two positions, at least 1.
    pub step: Option<i64>,
}

impl Range {
    /// `:`, which takes all of a dim.
    pub const WHOLE: Self = Self {
        start: None,
        stop: None,
        step: None,
    };

    /// The number of positions that the range takes of a dim of size `length`.
    ///
    /// # Errors
    /// The step is not positive.
    pub fn len(&self, length: i64) -> Result<i64> {
        let step = self.step.unwrap_or(1);
        if step <= 0 {
            return Err(Refused);
        }
        let clamp = |position: i64| {
            let position = if position < 0 {
                position.saturating_add(length).max(0)
            } else {
                position
            };
            position.min(length)
        };
        let first = clamp(self.start.unwrap_or(0));
        let end = clamp(self.stop.unwrap_or(length));
        if end <= first {
            return Ok(0);
        }
        Ok((end - first - 1) / step + 1)
    }
}

/// One item of a plan, made of the item of the index at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The item itself.
    Item(usize),
    /// The positions along `axis` of the true entries of the mask.
    MaskAxis {
        /// The position of the mask among the items.
        item: usize,
        /// The axis of the mask.
        axis: usize,
    },
    /// A dim that an ellipsis takes whole.
    Whole,
}

/// The effect of an index on a batch size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// True if the index takes everything as it is.
    pub is_whole: bool,
    /// The items to index each leaf with.
    pub steps: SmallVec<[Step; 6]>,
    /// The batch size of the result.
    pub size: Dims,
    /// For each dim of the result the dim whose name it takes.
    pub sources: SmallVec<[Option<usize>; 6]>,
}

/// A dim of the result while it is planned; None stands for an index tensor.
type Slot = Option<(i64, Option<usize>)>;

/// An index tensor: its shape, the dim that it indexes, whether a mask gave it.
struct Advanced {
    shape: Dims,
    dim: Option<usize>,
    is_mask: bool,
}

/// The plan of `items` on `batch_size`.
///
/// # Errors
/// There are two ellipses, or more items than dims; a position is outside of its dim, a mask has another
/// shape than its dims, a step is not positive, or two tensors do not broadcast.
pub fn plan(batch_size: &[i64], items: &[Item]) -> Result<Plan> {
    let ndim = batch_size.len();
    let ellipsis = position_of_ellipsis(items)?;
    let used: usize = items.iter().map(dims_used).sum();
    if used > ndim {
        return Err(Refused);
    }
    let mut planner = Planner::new(batch_size);
    for (position, item) in items.iter().enumerate() {
        if Some(position) == ellipsis {
            // A trailing ellipsis says nothing.
            if position + 1 < items.len() {
                for _ in 0..ndim - used {
                    planner.push_range(Range::WHOLE, Step::Whole)?;
                }
            }
        } else {
            planner.push(position, item)?;
        }
    }
    planner.finish()
}

fn position_of_ellipsis(items: &[Item]) -> Result<Option<usize>> {
    let mut positions = (0..items.len()).filter(|&at| items[at] == Item::Ellipsis);
    let first = positions.next();
    match positions.next() {
        Some(_) => Err(Refused),
        None => Ok(first),
    }
}

fn dims_used(item: &Item) -> usize {
    match item {
        Item::Ellipsis | Item::NewDim | Item::Bool(_) => 0,
        Item::Position(_) | Item::Slice(_) | Item::Positions(_) => 1,
        Item::Mask { shape, .. } => shape.len(),
    }
}

struct Planner<'b> {
    batch_size: &'b [i64],
    // The next dim to be indexed.
    dim: usize,
    slots: SmallVec<[Slot; 8]>,
    tensors: SmallVec<[Advanced; 4]>,
    plan: Plan,
}

impl<'b> Planner<'b> {
    fn new(batch_size: &'b [i64]) -> Self {
        Self {
            batch_size,
            dim: 0,
            slots: SmallVec::new(),
            tensors: SmallVec::new(),
            plan: Plan {
                is_whole: true,
                ..Plan::default()
            },
        }
    }

    fn push(&mut self, position: usize, item: &Item) -> Result<()> {
        let step = Step::Item(position);
        if let Item::Slice(range) = item {
            return self.push_range(*range, step);
        }
        self.plan.is_whole = false;
        match item {
            Item::NewDim => self.slots.push(Some((1, None))),
            Item::Bool(value) => {
                self.push_tensor(Dims::from_slice(&[i64::from(*value)]), None, false);
            }
            Item::Position(index) => {
                let length = self.batch_size[self.dim];
                if *index >= length || *index < -length {
                    return Err(Refused);
                }
                self.dim += 1;
            }
            Item::Positions(shape) => {
                self.push_tensor(shape.clone(), Some(self.dim), false);
                self.dim += 1;
            }
            Item::Mask { shape, count } => return self.push_mask(position, shape, *count),
            Item::Ellipsis | Item::Slice(_) => {}
        }
        self.plan.steps.push(step);
        Ok(())
    }

    fn push_range(&mut self, range: Range, step: Step) -> Result<()> {
        let length = range.len(self.batch_size[self.dim])?;
        self.slots.push(Some((length, Some(self.dim))));
        self.plan.is_whole &= range == Range::WHOLE;
        self.plan.steps.push(step);
        self.dim += 1;
        Ok(())
    }

    fn push_mask(&mut self, position: usize, shape: &Dims, count: i64) -> Result<()> {
        let dims = &self.batch_size[self.dim..self.dim + shape.len()];
        if shape.as_slice() != dims {
            return Err(Refused);
        }
        for axis in 0..shape.len() {
            self.push_tensor(Dims::from_slice(&[count]), Some(self.dim), true);
            self.plan.steps.push(Step::MaskAxis {
                item: position,
                axis,
            });
            self.dim += 1;
        }
        Ok(())
    }

    fn push_tensor(&mut self, shape: Dims, dim: Option<usize>, is_mask: bool) {
        self.slots.push(None);
        self.tensors.push(Advanced {
            shape,
            dim,
            is_mask,
        });
    }

    fn finish(mut self) -> Result<Plan> {
        let mut dims: SmallVec<[(i64, Option<usize>); 8]> =
            self.slots.iter().copied().flatten().collect();
        if !self.tensors.is_empty() {
            // The dims of the index tensors stand where those stood if they are adjacent,
            // and lead otherwise.
            let is_tensor = |slot: &Slot| slot.is_none();
            let first = self.slots.iter().position(is_tensor).unwrap_or(0);
            let last = self.slots.iter().rposition(is_tensor).unwrap_or(0);
            let adjacent = last - first + 1 == self.tensors.len();
            let block = advanced_dims(&self.tensors)?;
            dims.insert_many(if adjacent { first } else { 0 }, block);
        }
        for dim in self.dim..self.batch_size.len() {
            dims.push((self.batch_size[dim], Some(dim)));
        }
        self.plan.size = dims.iter().map(|(length, _)| *length).collect();
        self.plan.sources = dims.iter().map(|(_, source)| *source).collect();
        Ok(self.plan)
    }
}

/// The dims that index tensors broadcast to. One of them takes the name of an indexed dim
/// where only that dim's tensor varies along it.
fn advanced_dims(tensors: &[Advanced]) -> Result<Vec<(i64, Option<usize>)>> {
    let ndim = tensors
        .iter()
        .map(|tensor| tensor.shape.len())
        .max()
        .unwrap_or(0);
    let mut block = Vec::with_capacity(ndim);
    for back in (1..=ndim).rev() {
        let (mut length, mut source, mut claims) = (1, None, 0);
        for tensor in tensors {
            if tensor.shape.len() < back {
                continue;
            }
            let own = tensor.shape[tensor.shape.len() - back];
            if own != 1 {
                if length != 1 && length != own {
                    return Err(Refused);
                }
                length = own;
            }
            if own != 1 || tensor.is_mask {
                claims += 1;
                let varying = tensor.shape.iter().filter(|&&other| other != 1).count();
                source = tensor.dim.filter(|_| varying == 1 || tensor.is_mask);
            }
        }
        block.push((length, source.filter(|_| claims == 1)));
    }
    if let ([tensor], [dim]) = (tensors, block.as_mut_slice()) {
        dim.1 = tensor.dim;
    }
    Ok(block)
}
