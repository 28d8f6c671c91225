//! The safetensors format, one file or several with an index.
//!
//! ```text
//! [header length: 8 bytes, little-endian] [header: JSON, padded with spaces] [data]
//! ```
//!
//! The header names each tensor with dtype, shape and its bytes in the data; `__metadata__` holds
//! texts. Several files (shards) are named by an index, as Hugging Face writes it: `weight_map` says
//! which tensor is in which file.
//!
//! Writing plans the header first. The checksums go into `__metadata__` and are known last; their text is
//! as long before as after, so room is left for them and the header is written when the data is.
//! Tensors are in the order of their alignment, so that each can be used where it is mapped.
//!
//! Reading checks everything that a header says before a tensor is made of it: files come from
//! anywhere.

mod dtypes;
mod read;
mod shards;
#[cfg(test)]
mod tests;
mod verify;
mod write;

pub use dtypes::{format_dtype, format_shape};
pub use read::{Header, Tensor, is_safetensors, map, read_header};
pub(crate) use read::{damaged, header_of, is_safetensors_file};
pub use shards::{files_of, read_index};
pub(crate) use verify::{verify, verify_shards};
pub(crate) use write::write_file;
pub use write::{NewFile, NewIndex, NewTensor, Written, save};

/// The entry of `__metadata__` that holds the checksums.
pub const CHECKSUMS_ENTRY: &str = "tensordict.sums";

/// The entry of `__metadata__` that tells the shards of one save from those of others.
const SAVE_ENTRY: &str = "tensordict.save";

/// The suffix of a file.
const SUFFIX: &str = ".safetensors";

/// The suffix of an index.
pub const INDEX_SUFFIX: &str = ".index.json";

/// The longest header that is read: the limit of the reference reader.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const METADATA: &str = "__metadata__";
