//! Collections of tensors as files: names, metadata, plans, writing, committing, reading.
//!
//! A save is a [`plan::Plan`]: every directory, file name, size and byte of metadata is
//! known, and checked, before the first byte is written. [`write`] puts the files of a
//! plan into a work directory with a few threads, [`commit`] makes the work directory
//! the save in one step. A load is the reverse: [`read`] takes in the metadata of a tree
//! and checks it against the files, [`map`] maps them. Loading never writes.
//!
//! The layout is the published directory format, version 1: one directory per level with a
//! `meta.json`, one `<key>.memmap` of raw bytes per leaf. Start reading at [`metadata`].
//!
//! Threads are scoped to one call: nothing outlives it, so a process may fork at any time.

pub mod archive;
pub mod arena;
pub mod checkpoint;
pub mod checksums;
pub mod commit;
pub mod consolidated;
pub mod dtype;
mod error;
pub mod file;
pub mod full;
pub mod io;
pub mod job;
pub mod json;
pub mod lock;
pub mod map;
pub mod metadata;
pub mod names;
pub mod plan;
pub mod prefetch;
pub mod read;
pub mod region;
pub mod replace;
pub mod safetensors;
pub mod source;
pub mod sparse;
mod spread;
pub mod verify;
mod work;
pub mod write;

pub use crate::threads::thread_count;
pub use error::{StorageError, StorageResult};

/// Things by name, in their order. The hash is seeded once a process.
pub type Named<V> = indexmap::IndexMap<String, V, foldhash::quality::RandomState>;

/// The name of the metadata file of a level.
pub const METADATA_FILE: &str = "meta.json";

/// The file of what the published format does not say of a value that is no tensor.
pub const VALUE_NOTES_FILE: &str = ".nontensor.json";

/// The depth to which collections may be nested in a tree or an archive: deeper than anybody nests
/// them, and far from the end of the stack.
pub const MAX_LEVELS: usize = 512;

/// The newest format version that this crate reads, and the one that it writes.
pub const FORMAT_VERSION: i64 = 1;
