//! The source of the bytes of a leaf, given out in units.
//!
//! Bytes that lie as they are to be written are lent; those of tensors with gaps, and of conjugated
//! and negated views, are put in order in a buffer that belongs to the thread. Those that are elsewhere
//! come piece by piece from whoever fetches them.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::region::Region;

/// The number of bytes that the processor reads at once.
const LINE_BYTES: usize = 64;

/// The bytes of one unit: large enough to cost nothing, small enough to be interrupted.
pub const UNIT_BYTES: usize = 4 << 20;

/// The bytes of one unit of lent memory, which is copied: few enough to stay in the cache.
const LENT_BYTES: usize = 512 << 10;

/// The items of a view that have the other sign than in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signs {
    /// Every real number: a negated view.
    pub negated: bool,
    /// The imaginary parts of complex numbers: a conjugated view.
    pub conjugated: bool,
}

/// A tensor whose items do not lie one after the other.
#[derive(Debug, Clone)]
pub struct Strided {
    memory: Region,
    /// The offset of the first item, in bytes from the start of `memory`.
    start: usize,
    /// Sizes and strides in bytes, the last dim last; dims that can be walked as one are one.
    dims: Vec<(usize, isize)>,
    item_bytes: usize,
    signs: Signs,
    is_complex: bool,
}

impl Strided {
    /// A tensor of these sizes and strides (in items) over `memory`, whose first item is at `start`
    /// bytes. None where it would reach beyond the memory.
    #[must_use]
    pub fn new(
        memory: Region,
        start: usize,
        shape: &[i64],
        strides: &[i64],
        item_bytes: usize,
        is_complex: bool,
        signs: Signs,
    ) -> Option<Self> {
        let mut dims: Vec<(usize, isize)> = Vec::with_capacity(shape.len());
        let (mut lowest, mut highest) = (0_isize, 0_isize);
        for (&size, &stride) in shape.iter().zip(strides) {
            let size = usize::try_from(size).ok()?;
            let stride = isize::try_from(stride)
                .ok()?
                .checked_mul(isize::try_from(item_bytes).ok()?)?;
            if size == 0 {
                return None;
            }
            let reach = stride.checked_mul(isize::try_from(size).ok()? - 1)?;
            lowest = lowest.checked_add(reach.min(0))?;
            highest = highest.checked_add(reach.max(0))?;
            if size == 1 {
                continue;
            }
            match dims.last_mut() {
                // The dim before steps over exactly this one.
                Some(last) if last.1 == stride * isize::try_from(size).ok()? => {
                    *last = (last.0 * size, stride);
                }
                _ => dims.push((size, stride)),
            }
        }
        let first = isize::try_from(start).ok()?;
        let end = first
            .checked_add(highest)?
            .checked_add(isize::try_from(item_bytes).ok()?)?;
        if first.checked_add(lowest)? < 0 || end > isize::try_from(memory.len()).ok()? {
            return None;
        }
        Some(Self {
            memory,
            start,
            dims,
            item_bytes,
            signs,
            is_complex,
        })
    }

    /// Returns the number of bytes, put in order.
    #[must_use]
    pub fn len(&self) -> u64 {
        let items: usize = self.dims.iter().map(|(size, _)| size).product();
        (items * self.item_bytes) as u64
    }

    /// Returns whether there are none, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts the bytes from `offset`, a whole number of items, in order in `buffer`.
    fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let item = self.item_bytes;
        let mut left = usize::try_from(offset).unwrap_or(usize::MAX) / item;
        let mut place = vec![0_usize; self.dims.len()];
        for (dim, &(size, _)) in self.dims.iter().enumerate().rev() {
            place[dim] = left % size;
            left /= size;
        }
        let bytes = self.memory.bytes();
        let (inner_size, inner_stride) = self.dims.last().copied().unwrap_or((1, 0));
        let mut filled = 0;
        while filled < buffer.len() {
            let mut at = self.start;
            for (&index, &(_, stride)) in place.iter().zip(&self.dims) {
                at = at.wrapping_add_signed(stride * index.cast_signed());
            }
            let first = place.last().copied().unwrap_or(0);
            let items = (inner_size - first).min((buffer.len() - filled) / item);
            if let Some(rows) = self.rows_to_transpose(&place, (buffer.len() - filled) / item) {
                let bytes = &bytes[at..];
                let run = &mut buffer[filled..filled + rows * inner_size * item];
                match item {
                    1 => transpose::<1>(bytes, inner_stride, run, rows),
                    2 => transpose::<2>(bytes, inner_stride, run, rows),
                    4 => transpose::<4>(bytes, inner_stride, run, rows),
                    8 => transpose::<8>(bytes, inner_stride, run, rows),
                    _ => transpose::<16>(bytes, inner_stride, run, rows),
                }
                filled += run.len();
                self.advance(&mut place, self.dims.len() - 2, rows);
                continue;
            }
            let run = &mut buffer[filled..filled + items * item];
            if inner_stride.unsigned_abs() == item && inner_stride > 0 {
                run.copy_from_slice(&bytes[at..at + run.len()]);
            } else {
                match item {
                    1 => gather::<1>(bytes, at, inner_stride, run),
                    2 => gather::<2>(bytes, at, inner_stride, run),
                    4 => gather::<4>(bytes, at, inner_stride, run),
                    8 => gather::<8>(bytes, at, inner_stride, run),
                    16 => gather::<16>(bytes, at, inner_stride, run),
                    _ => {
                        for (number, one) in run.chunks_exact_mut(item).enumerate() {
                            let at = at.wrapping_add_signed(inner_stride * number.cast_signed());
                            one.copy_from_slice(&bytes[at..at + item]);
                        }
                    }
                }
            }
            filled += items * item;
            let Some(last) = place.len().checked_sub(1) else {
                break;
            };
            self.advance(&mut place, last, items);
        }
        self.flip_signs(buffer);
    }

    /// Goes on by `count` along a dim, and by one along the dim before at its end.
    fn advance(&self, place: &mut [usize], dim: usize, count: usize) {
        place[dim] += count;
        for dim in (0..=dim).rev() {
            if place[dim] < self.dims[dim].0 {
                break;
            }
            place[dim] = 0;
            if dim > 0 {
                place[dim - 1] += 1;
            }
        }
    }

    /// Returns the number of rows of the last dim, from `place` on, that are put in order together:
    /// those whose items lie side by side in memory, so that each line of the cache is read once
    /// and not once a row.
    fn rows_to_transpose(&self, place: &[usize], items_left: usize) -> Option<usize> {
        let [.., (num_rows, row_stride), (inner_size, inner_stride)] = self.dims[..] else {
            return None;
        };
        let [.., row, 0] = place[..] else {
            return None;
        };
        let is_transposed = row_stride == self.item_bytes.cast_signed()
            && inner_stride > row_stride
            && matches!(self.item_bytes, 1 | 2 | 4 | 8 | 16);
        let rows = (LINE_BYTES / self.item_bytes)
            .min(num_rows - row)
            .min(items_left / inner_size);
        (is_transposed && rows > 1).then_some(rows)
    }

    fn flip_signs(&self, buffer: &mut [u8]) {
        if self.signs == Signs::default() {
            return;
        }
        // The sign is the highest bit of a float, little-endian; a complex number is two floats.
        let part = if self.is_complex {
            self.item_bytes / 2
        } else {
            self.item_bytes
        };
        for (number, one) in buffer.chunks_exact_mut(part).enumerate() {
            let is_imaginary = self.is_complex && number % 2 == 1;
            if self.signs.negated != (self.signs.conjugated && is_imaginary) {
                one[part - 1] ^= 0x80;
            }
        }
    }
}

/// Fills `run` with `rows` rows, whose first items lie side by side from the start of `bytes`.
///
/// Square by square: lines that are a power of two apart share few places in the cache, so the lines
/// of a square are copied before they are read across.
fn transpose<const ITEM: usize>(bytes: &[u8], stride: isize, run: &mut [u8], rows: usize) {
    let run = run.as_chunks_mut::<ITEM>().0;
    let columns = run.len() / rows;
    let side = LINE_BYTES / ITEM;
    let mut square = [0; LINE_BYTES * LINE_BYTES];
    let square = square.as_chunks_mut::<ITEM>().0;
    for first in (0..columns).step_by(side) {
        let width = side.min(columns - first);
        for (column, line) in square.chunks_exact_mut(side).take(width).enumerate() {
            let at = (first + column) * stride.unsigned_abs();
            let items = bytes[at..at + rows * ITEM].as_chunks::<ITEM>().0;
            line[..rows].copy_from_slice(items);
        }
        for row in 0..rows {
            let line = &mut run[row * columns + first..][..width];
            for (item, column) in line.iter_mut().zip(square.chunks_exact(side)) {
                *item = column[row];
            }
        }
    }
}

fn gather<const ITEM: usize>(bytes: &[u8], at: usize, stride: isize, run: &mut [u8]) {
    let mut at = at;
    for one in run.as_chunks_mut::<ITEM>().0 {
        *one = *bytes[at..]
            .first_chunk::<ITEM>()
            .expect("checked when made");
        at = at.wrapping_add_signed(stride);
    }
}

/// Tensors of one shape, stacked along a dim, that are joined as they are read.
#[derive(Debug, Clone)]
pub struct Joined {
    parts: Vec<Region>,
    /// The bytes that follow each other in a part: those of the dims behind the one of the stack.
    chunk_bytes: usize,
}

impl Joined {
    /// The stack of `parts`, each of `num_chunks` chunks that follow each other: as many as there
    /// are places in the dims before that of the stack. None where parts are not of one size.
    #[must_use]
    pub fn new(parts: Vec<Region>, num_chunks: usize) -> Option<Self> {
        let part_bytes = parts.first()?.len();
        let is_one_size = parts.iter().all(|part| part.len() == part_bytes);
        let chunk_bytes = part_bytes.checked_div(num_chunks)?;
        (is_one_size && chunk_bytes > 0 && chunk_bytes * num_chunks == part_bytes)
            .then_some(Self { parts, chunk_bytes })
    }

    fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Puts the bytes from `offset` in order in `buffer`.
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut at = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut filled = 0;
        while filled < buffer.len() {
            let (chunk, within) = (at / self.chunk_bytes, at % self.chunk_bytes);
            let (row, part) = (chunk / self.parts.len(), chunk % self.parts.len());
            let length = (self.chunk_bytes - within).min(buffer.len() - filled);
            let start = row * self.chunk_bytes + within;
            self.parts[part].copy_to(start, &mut buffer[filled..filled + length])?;
            filled += length;
            at += length;
        }
        Ok(())
    }
}

/// Bytes that are elsewhere until they are written: those of a tensor of another device.
///
/// Whoever implements it has few pieces in memory at a time, and fetches the next one while one is
/// written.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Returns the number of bytes.
    fn length(&self) -> u64;

    /// Begins to fetch the first piece, since these bytes are written next. What fails is said by
    /// [`Remote::read`].
    fn begin(&self);

    /// Shows all bytes to `take`, in order, piece by piece, until it breaks.
    ///
    /// # Errors
    /// They cannot be fetched.
    fn read(&self, take: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<()>;
}

/// The source of bytes.
#[derive(Debug, Clone)]
pub enum Source {
    /// Bytes of our own: metadata, pickled values.
    Bytes(Vec<u8>),
    /// Memory of a tensor, in row-major order without gaps.
    Memory(Region),
    /// A tensor with gaps, or whose signs are others than in memory.
    Strided(Box<Strided>),
    /// Tensors that are stacked.
    Joined(Box<Joined>),
    /// Bytes that are elsewhere.
    Remote(Arc<dyn Remote>),
}

impl Source {
    /// No bytes.
    pub const EMPTY: Self = Self::Memory(Region::EMPTY);

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Memory(memory) => memory.len() as u64,
            Self::Strided(strided) => strided.len(),
            Self::Joined(joined) => joined.len(),
            Self::Remote(remote) => remote.length(),
        }
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of the bytes.
    ///
    /// # Errors
    /// They are elsewhere, and cannot be fetched.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.len()).unwrap_or(0));
        let extend = |_, unit: &[u8]| {
            bytes.extend_from_slice(unit);
            Ok(())
        };
        self.units(&mut Vec::new(), extend, |error| error)?;
        Ok(bytes)
    }

    /// Says that the bytes are written next, so that those that are elsewhere are fetched meanwhile.
    pub fn begin(&self) {
        if let Self::Remote(remote) = self {
            remote.begin();
        }
    }

    /// Calls `take` with the bytes, in order, in units of at most [`UNIT_BYTES`]; with the
    /// offset of each. `bounce` is used where they have to be put in order, and grows as needed.
    /// `failed` makes an error of one of fetching them.
    ///
    /// # Errors
    /// The first that `take` returns; that of fetching them.
    pub fn units<E>(
        &self,
        bounce: &mut Vec<u8>,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
        failed: impl Fn(io::Error) -> E,
    ) -> Result<(), E> {
        let bytes = match self {
            Self::Bytes(bytes) => bytes.as_slice(),
            Self::Memory(memory) => {
                let Some(bytes) = memory.own_bytes() else {
                    let fill = |offset, buffer: &mut [u8]| {
                        memory.copy_to(usize::try_from(offset).unwrap_or(usize::MAX), buffer)
                    };
                    return bounced(self.len(), LENT_BYTES, bounce, fill, take, failed);
                };
                bytes
            }
            Self::Strided(strided) => {
                let unit = UNIT_BYTES - UNIT_BYTES % strided.item_bytes;
                let fill = |offset, buffer: &mut [u8]| {
                    strided.fill(offset, buffer);
                    Ok(())
                };
                return bounced(self.len(), unit, bounce, fill, take, failed);
            }
            Self::Joined(joined) => {
                let fill = |offset, buffer: &mut [u8]| joined.fill(offset, buffer);
                return bounced(self.len(), UNIT_BYTES, bounce, fill, take, failed);
            }
            Self::Remote(remote) => return fetched(&**remote, take, failed),
        };
        let mut offset = 0;
        for unit in bytes.chunks(UNIT_BYTES) {
            take(offset, unit)?;
            offset += unit.len() as u64;
        }
        Ok(())
    }
}

/// Calls `take` with bytes as they are fetched.
fn fetched<E>(
    remote: &dyn Remote,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let length = remote.length();
    let mut offset = 0;
    let mut refused = None;
    let read = remote.read(&mut |piece| {
        for unit in piece.chunks(UNIT_BYTES) {
            let end = offset + unit.len() as u64;
            let start = std::mem::replace(&mut offset, end);
            // More bytes than were planned would be those of the next leaf.
            if end > length {
                return ControlFlow::Break(());
            }
            if let Err(error) = take(start, unit) {
                refused = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    if let Some(error) = refused {
        return Err(error);
    }
    read.map_err(&failed)?;
    if offset == length {
        return Ok(());
    }
    let text = format!("{offset} bytes were fetched, and there should be {length}");
    Err(failed(io::Error::new(io::ErrorKind::InvalidData, text)))
}

/// Calls `take` with bytes that `fill` puts in order, in units of so many.
fn bounced<E>(
    length: u64,
    unit: usize,
    bounce: &mut Vec<u8>,
    fill: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let mut offset = 0;
    while offset < length {
        let left = usize::try_from(length - offset).unwrap_or(usize::MAX);
        let unit = unit.min(left);
        if bounce.len() < unit {
            bounce.resize(unit, 0);
        }
        let buffer = &mut bounce[..unit];
        fill(offset, buffer).map_err(&failed)?;
        take(offset, buffer)?;
        offset += unit as u64;
    }
    Ok(())
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "the numbers are small"
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(source: &Source) -> Vec<u8> {
        let mut all = Vec::new();
        let take = |offset, unit: &[u8]| {
            assert_eq!(offset, all.len() as u64);
            all.extend_from_slice(unit);
            Ok(())
        };
        source.units(&mut Vec::new(), take, |error| error).unwrap();
        all
    }

    proptest! {
        #[test]
        fn test_permuted_dims_are_put_in_order(
            sizes in proptest::collection::vec(1_usize..20, 1..4),
            item in prop_oneof![Just(1_usize), Just(2), Just(4), Just(8), Just(16)],
            seed in any::<u64>(),
        ) {
            let items: usize = sizes.iter().product();
            let bytes: Vec<u8> = (0..items * item).map(|at| (at % 253) as u8).collect();
            // SAFETY: the bytes outlive the region.
            let memory = unsafe { Region::new(bytes.as_ptr(), bytes.len()) };
            let mut strides = vec![1_usize; sizes.len()];
            for dim in (1..sizes.len()).rev() {
                strides[dim - 1] = strides[dim] * sizes[dim];
            }
            let turn = usize::try_from(seed % sizes.len() as u64).unwrap();
            let order: Vec<usize> = (0..sizes.len()).map(|dim| (dim + turn) % sizes.len()).collect();
            let shape: Vec<i64> = order.iter().map(|&dim| sizes[dim] as i64).collect();
            let turned: Vec<i64> = order.iter().map(|&dim| strides[dim] as i64).collect();
            let strided =
                Strided::new(memory, 0, &shape, &turned, item, false, Signs::default()).unwrap();
            let mut expected = Vec::new();
            for number in 0..items {
                let (mut left, mut at) = (number, 0);
                for dim in (0..shape.len()).rev() {
                    let size = shape[dim] as usize;
                    at += (left % size) * turned[dim] as usize;
                    left /= size;
                }
                expected.extend_from_slice(&bytes[at * item..(at + 1) * item]);
            }
            prop_assert_eq!(read(&Source::Strided(Box::new(strided))), expected);
        }
    }

    #[test]
    fn test_stacked_parts_are_joined() {
        let bytes: Vec<u8> = (0..12).collect();
        // SAFETY: the bytes outlive the regions.
        let part = |at: usize| unsafe { Region::new(bytes[at..].as_ptr(), 6) };
        let joined = |parts, chunks| Joined::new(parts, chunks).map(Box::new).map(Source::Joined);
        let parts = || vec![part(0), part(6)];
        assert_eq!(read(&joined(parts(), 1).unwrap()), bytes);
        assert_eq!(
            read(&joined(parts(), 3).unwrap()),
            [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
        );
        assert!(joined(parts(), 4).is_none());
        assert!(joined(vec![part(0), Region::EMPTY], 1).is_none());
        assert!(joined(Vec::new(), 1).is_none());
    }

    /// Pieces of a size that say that they are so many bytes.
    #[derive(Debug)]
    struct Pieces {
        sizes: Vec<usize>,
        length: u64,
        fails: bool,
    }

    impl Remote for Pieces {
        fn length(&self) -> u64 {
            self.length
        }

        fn begin(&self) {}

        fn read(&self, take: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<()> {
            for (number, &size) in self.sizes.iter().enumerate() {
                if take(&vec![number as u8; size]).is_break() {
                    return Ok(());
                }
            }
            if self.fails {
                return Err(io::Error::other("gone"));
            }
            Ok(())
        }
    }

    fn remote(sizes: &[usize], length: usize, fails: bool) -> Source {
        Source::Remote(Arc::new(Pieces {
            sizes: sizes.to_vec(),
            length: length as u64,
            fails,
        }))
    }

    #[test]
    fn test_bytes_from_elsewhere_are_given_as_they_come() {
        let found = read(&remote(&[3, 0, UNIT_BYTES + 5], UNIT_BYTES + 8, false));
        assert_eq!(found[..3], [0; 3]);
        assert_eq!(found[3..], vec![2; UNIT_BYTES + 5]);
    }

    #[test]
    fn test_bytes_from_elsewhere_that_are_others_than_planned_are_an_error() {
        let failed = |source: Source| source.to_vec().unwrap_err().to_string();
        assert_eq!(failed(remote(&[3], 3, true)), "gone");
        assert_eq!(
            failed(remote(&[3], 4, false)),
            "3 bytes were fetched, and there should be 4"
        );
        assert_eq!(
            failed(remote(&[3, 2], 4, false)),
            "5 bytes were fetched, and there should be 4"
        );
        let mut taken = 0;
        let refuse = |_, unit: &[u8]| {
            taken += unit.len();
            Err(io::Error::other("full"))
        };
        let source = remote(&[3, 3], 6, true);
        let refused = source.units(&mut Vec::new(), refuse, |error| error);
        assert_eq!(refused.unwrap_err().to_string(), "full");
        assert_eq!(taken, 3);
    }

    #[test]
    fn test_joined_parts_are_given_in_units() {
        let bytes: Vec<u8> = (0..3 * UNIT_BYTES / 2).map(|at| (at % 251) as u8).collect();
        // SAFETY: the bytes outlive the region.
        let part = unsafe { Region::new(bytes.as_ptr(), bytes.len()) };
        let joined = Joined::new(vec![part, part, part], 1).unwrap();
        assert_eq!(read(&Source::Joined(Box::new(joined))), bytes.repeat(3));
    }

    #[test]
    fn test_expanded_and_reversed_dims() {
        let bytes = [1_u8, 2, 3];
        // SAFETY: the bytes outlive the region.
        let memory = unsafe { Region::new(bytes.as_ptr(), bytes.len()) };
        let signs = Signs::default();
        let expanded = Strided::new(memory, 0, &[2, 3], &[0, 1], 1, false, signs).unwrap();
        assert_eq!(
            read(&Source::Strided(Box::new(expanded))),
            [1, 2, 3, 1, 2, 3]
        );
        let reversed = Strided::new(memory, 2, &[3], &[-1], 1, false, signs).unwrap();
        assert_eq!(read(&Source::Strided(Box::new(reversed))), [3, 2, 1]);
        assert!(Strided::new(memory, 1, &[3], &[1], 1, false, signs).is_none());
        assert!(Strided::new(memory, 1, &[3], &[-1], 1, false, signs).is_none());
    }

    #[test]
    fn test_signs() {
        let numbers: Vec<u8> = [1.0_f32, 2.0, 3.0, -4.0]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        // SAFETY: the bytes outlive the region.
        let memory = unsafe { Region::new(numbers.as_ptr(), numbers.len()) };
        let read_floats = |shape: &[i64], item, is_complex, signs| -> Vec<f32> {
            let strided = Strided::new(memory, 0, shape, &[1], item, is_complex, signs).unwrap();
            read(&Source::Strided(Box::new(strided)))
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                .collect()
        };
        let conjugated = Signs {
            conjugated: true,
            negated: false,
        };
        let negated = Signs {
            conjugated: false,
            negated: true,
        };
        let both = Signs {
            conjugated: true,
            negated: true,
        };
        assert_eq!(
            read_floats(&[2], 8, true, conjugated),
            [1.0, -2.0, 3.0, 4.0]
        );
        assert_eq!(
            read_floats(&[4], 4, false, negated),
            [-1.0, -2.0, -3.0, 4.0]
        );
        assert_eq!(read_floats(&[2], 8, true, both), [-1.0, 2.0, -3.0, -4.0]);
    }
}
