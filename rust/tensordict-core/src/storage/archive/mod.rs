//! The archive: a zip file that mirrors a tree.
//!
//! Entries have the relative paths of the tree's files. Those of leaves (`*.memmap`) are stored at
//! offsets that are multiples of 64, of 4,096 from 64 KiB on, so that one mapping of the file
//! serves all of them. The alignment is made by a block of zeros in the extra field of the local
//! header, of the id `td`; the central directory repeats it. Sizes are always in the 64-bit
//! block. The published release reads and writes the same.
//!
//! Checksums are the entry [`CHECKSUMS_FILE`](super::checksums::CHECKSUMS_FILE), which comes last. They carry the time
//! of the archive, so that stores through a writable mapping are told from damage.

mod compress;
mod directory;
mod entries;
mod locate;
mod read;
mod records;
mod refresh;
mod runs;
mod unpack;
mod verify;
mod write;

pub use compress::Method;
pub use directory::Entry;
pub use locate::LeafBytes;
pub use read::Archive;
pub use refresh::refresh;
pub use unpack::unpack;
pub(crate) use verify::verify;
pub use write::{Written, create, pack, save};

const LOCAL_SIGNATURE: u32 = 0x0403_4B50;
const CENTRAL_SIGNATURE: u32 = 0x0201_4B50;
const END_SIGNATURE: u32 = 0x0605_4B50;
const END64_SIGNATURE: u32 = 0x0606_4B50;
const END64_LOCATOR_SIGNATURE: u32 = 0x0706_4B50;

const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
const END64_BYTES: usize = 56;
const END64_LOCATOR_BYTES: usize = 20;

/// The id of the block with 64-bit sizes.
const SIZES_ID: u16 = 1;
/// The id of the block of zeros: `td`.
const PAD_ID: u16 = 0x6474;
/// The bytes of the block with 64-bit sizes in a local header.
const SIZES_BYTES: usize = 20;

/// A value of the 32-bit fields that says: see the 64-bit block.
const SEE_SIZES: u32 = u32::MAX;

/// Names are UTF-8.
const UTF8_FLAG: u16 = 1 << 11;
/// The LZMA stream has an end marker.
const LZMA_END_FLAG: u16 = 1 << 1;
/// The entry is encrypted.
const ENCRYPTED_FLAG: u16 = 1;

/// Returns whether an entry is the bytes of a leaf.
fn is_leaf(name: &str) -> bool {
    name.ends_with(".memmap")
}
