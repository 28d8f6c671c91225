//! Orders of rows that need no memory: where a shuffled epoch is at any of its positions.
//!
//! A [`Permutation`] is a Feistel network over the numbers below its length. Seed and epoch are its
//! key, so that any position is found at once, and the inverse as well. A number is a pair `(l, r)`
//! below `(a, b)`, two numbers near the square root of the length; a round adds a hash of one half to
//! the other half. Since `a * b` is hardly more than the length, few numbers come out that are too
//! large, and those are sent through again until they are not.
//!
//! The order is fixed: for the same key it is the same on every machine and in every version.

use smallvec::SmallVec;

/// Few rounds are enough where the halves are large.
const FEWEST_ROUNDS: u32 = 8;

/// The rest of an order after all rounds is at most two to the power of minus half of this.
const MIXED_BITS: u32 = 64;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hash whose every bit depends on all bits (the finalizer of `SplitMix64`).
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// One number for several, in their order.
fn key_of(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |key: u64, &part| {
        mixed(key.wrapping_add(GOLDEN) ^ mixed(part.wrapping_add(GOLDEN)))
    })
}

/// A permutation of the numbers below a length.
#[derive(Debug, Clone)]
pub struct Permutation {
    length: u64,
    /// The number of values of each of the halves.
    sizes: [u64; 2],
    keys: SmallVec<[u64; 16]>,
}

impl Permutation {
    /// The permutation of that length that belongs to some numbers, such as seed and epoch.
    #[must_use]
    pub fn new(length: u64, key: &[u64]) -> Self {
        let right = match length.isqrt() {
            root if root * root < length => root + 1,
            root => root.max(1),
        };
        let left = length.div_ceil(right).max(1);
        let rounds = FEWEST_ROUNDS.max(MIXED_BITS.div_ceil(left.ilog2().max(1)));
        let mut state = key_of(key);
        let keys = (0..rounds).map(|_| {
            state = state.wrapping_add(GOLDEN);
            mixed(state)
        });
        Self {
            length,
            sizes: [left, right],
            keys: keys.collect(),
        }
    }

    /// Counts the numbers.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Tells whether there is no number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Computes the number below `size` that a round adds to a half.
    fn step(key: u64, other: u64, size: u64) -> u64 {
        let hash = (other ^ key).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let hash = (hash ^ (hash >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        let scaled = (u128::from(hash) * u128::from(size)) >> 64;
        u64::try_from(scaled).unwrap_or(0)
    }

    fn once(&self, value: u64) -> u64 {
        let [left_size, right_size] = self.sizes;
        let (mut left, mut right) = (value / right_size, value % right_size);
        for pair in self.keys.chunks(2) {
            left += Self::step(pair[0], right, left_size);
            left -= if left >= left_size { left_size } else { 0 };
            if let Some(&key) = pair.get(1) {
                right += Self::step(key, left, right_size);
                right -= if right >= right_size { right_size } else { 0 };
            }
        }
        left * right_size + right
    }

    fn once_back(&self, value: u64) -> u64 {
        let [left_size, right_size] = self.sizes;
        let (mut left, mut right) = (value / right_size, value % right_size);
        for (round, &key) in self.keys.iter().enumerate().rev() {
            if round % 2 == 0 {
                let added = Self::step(key, right, left_size);
                left = if left >= added {
                    left - added
                } else {
                    left + left_size - added
                };
            } else {
                let added = Self::step(key, left, right_size);
                right = if right >= added {
                    right - added
                } else {
                    right + right_size - added
                };
            }
        }
        left * right_size + right
    }

    /// The number at a position.
    ///
    /// # Panics
    /// The position is not below the length.
    #[must_use]
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.length, "the position is beyond the end");
        let mut value = self.once(position);
        while value >= self.length {
            value = self.once(value);
        }
        value
    }

    /// The position of a number.
    ///
    /// # Panics
    /// The number is not below the length.
    #[must_use]
    pub fn position_of(&self, value: u64) -> u64 {
        assert!(value < self.length, "the number is beyond the end");
        let mut position = self.once_back(value);
        while position >= self.length {
            position = self.once_back(position);
        }
        position
    }
}

/// Blocks of neighbouring rows in a random order, the rows of each in a random order.
#[derive(Debug, Clone)]
pub struct BlockPermutation {
    length: u64,
    block: u64,
    blocks: Permutation,
    /// The place of the block that is shorter, the last one of the rows.
    short_place: u64,
    key: SmallVec<[u64; 4]>,
}

impl BlockPermutation {
    /// The order of `length` rows in blocks of `block` that belongs to some numbers.
    ///
    /// # Panics
    /// A block has no row.
    #[must_use]
    pub fn new(length: u64, block: u64, key: &[u64]) -> Self {
        assert!(block > 0, "a block has a row");
        let blocks = Permutation::new(length.div_ceil(block), key);
        let short_place = match blocks.len() {
            0 => 0,
            count => blocks.position_of(count - 1),
        };
        Self {
            length,
            block,
            blocks,
            short_place,
            key: key.into(),
        }
    }

    /// The place of the block at a position, and where in the order this block begins and ends.
    fn place(&self, position: u64) -> (u64, u64, u64) {
        let short = self.length - (self.blocks.len() - 1) * self.block;
        let before = self.short_place * self.block;
        if position < before {
            let place = position / self.block;
            (place, place * self.block, (place + 1) * self.block)
        } else if position < before + short {
            (self.short_place, before, before + short)
        } else {
            let start = before + short;
            let more = (position - start) / self.block;
            let start = start + more * self.block;
            (self.short_place + 1 + more, start, start + self.block)
        }
    }

    /// Hands the rows at some positions on, in their order.
    fn each(&self, start: u64, end: u64, mut take: impl FnMut(u64)) {
        let mut position = start;
        while position < end {
            let (place, first, last) = self.place(position);
            let number = self.blocks.at(place);
            let mut key = self.key.clone();
            key.push(number);
            let within = Permutation::new(last - first, &key);
            for position in position..end.min(last) {
                take(number * self.block + within.at(position - first));
            }
            position = last;
        }
    }
}

/// The order of the rows of an epoch.
#[derive(Debug, Clone)]
pub enum RowOrder {
    /// The order of the source.
    InTurn(u64),
    /// All of them shuffled.
    Shuffled(Permutation),
    /// Neighbours stay together.
    Blocks(BlockPermutation),
}

impl RowOrder {
    /// Counts the rows.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::InTurn(length) => *length,
            Self::Shuffled(order) => order.length,
            Self::Blocks(order) => order.length,
        }
    }

    /// Tells whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands on the rows at `count` positions from `start` on; after the last one the first follows.
    pub fn each(&self, start: u64, count: u64, mut take: impl FnMut(u64)) {
        let length = self.len();
        if length == 0 {
            return;
        }
        let mut left = count;
        let mut position = start % length;
        while left > 0 {
            let end = length.min(position + left);
            match self {
                Self::InTurn(_) => (position..end).for_each(&mut take),
                Self::Shuffled(order) => {
                    (position..end).for_each(|position| take(order.at(position)));
                }
                Self::Blocks(order) => order.each(position, end, &mut take),
            }
            left -= end - position;
            position = 0;
        }
    }
}
