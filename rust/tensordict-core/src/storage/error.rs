//! Errors of files: each message names the key and the file.

use std::io;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

use super::{FORMAT_VERSION, MAX_LEVELS};

/// The result of a fallible function of this module.
pub type StorageResult<T> = std::result::Result<T, StorageError>;

/// A failure while saving or loading.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The operating system refused something.
    #[error("{}{source}: '{}'", entry_prefix(.key), path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The entry it belongs to, displayed; empty for none.
        key: String,
        /// The refusal.
        source: io::Error,
    },

    /// The file of a leaf is not there.
    #[error("the file of the entry {key} is missing: '{}'", path.display())]
    MissingFile {
        /// The file that the metadata names.
        path: PathBuf,
        /// The entry, displayed.
        key: String,
    },

    /// The file of a leaf holds fewer bytes than its shape needs.
    #[error(
        "the file of the entry {key} is too short: '{}' has {found} bytes and its shape \
         and dtype need {expected}; it was cut, or its metadata is of another save",
        path.display()
    )]
    ShortFile {
        /// The file.
        path: PathBuf,
        /// The entry, displayed.
        key: String,
        /// Bytes in the file.
        found: u64,
        /// Bytes that the metadata asks for.
        expected: u64,
    },

    /// A file is shorter than it was when it was mapped.
    #[error(
        "'{}' was cut since it was mapped: it has {found} bytes, and what is read of it ends \
         at byte {expected}",
        path.display()
    )]
    CutFile {
        /// The file.
        path: PathBuf,
        /// Bytes in the file.
        found: u64,
        /// The end of the bytes that are asked for.
        expected: u64,
    },

    /// A metadata file is not JSON.
    #[error("{message}: character {position} of '{}'", path.display())]
    BadJson {
        /// The metadata file.
        path: PathBuf,
        /// The text of what was expected.
        message: String,
        /// The position, in characters.
        position: usize,
        /// The text of the file.
        text: String,
    },

    /// A metadata file is JSON, but not the metadata of a save.
    #[error("'{}' is damaged: {}{reason}", path.display(), entry_prefix(.key))]
    BadMetadata {
        /// The metadata file.
        path: PathBuf,
        /// The entry, displayed; empty for the level itself.
        key: String,
        /// The reason.
        reason: String,
    },

    /// A dtype without a name here.
    #[error("{dtype} (the dtype of the entry {key} in '{}') is not a dtype that can be loaded", path.display())]
    UnknownDtype {
        /// The metadata file.
        path: PathBuf,
        /// The entry, displayed.
        key: String,
        /// The name found.
        dtype: String,
    },

    /// Metadata of a version to come.
    #[error(
        "{} was saved in the format version {found}, but this version of tensordict reads \
         the format versions up to {FORMAT_VERSION}. Upgrade tensordict to load it.",
        path.display()
    )]
    NewerVersion {
        /// The metadata file.
        path: PathBuf,
        /// The version found.
        found: i64,
    },

    /// A key that the metadata of a level needs for itself.
    #[error(
        "the entry {key} cannot be saved: the directory format keeps the field '{field}' of \
         the collection under that name, and the entry would be lost. Rename the key."
    )]
    ReservedKey {
        /// The entry, displayed.
        key: String,
        /// Its last part.
        field: String,
    },

    /// Two entries whose files have one name.
    #[error(
        "the entries {first} and {second} cannot be saved together: both need the file \
         '{name}'. Rename one of the keys."
    )]
    NameCollision {
        /// The entry that came first, displayed.
        first: String,
        /// The other entry, displayed.
        second: String,
        /// The name they share.
        name: String,
    },

    /// Collections are nested too deep.
    #[error(
        "collections are nested more than {MAX_LEVELS} times in one another, which cannot be saved \
         or loaded: '{}'",
        path.display()
    )]
    TooDeep {
        /// The directory of the first that is too deep, or its name in the plan.
        path: PathBuf,
    },

    /// Other saves took its place while it was read, each time.
    #[error(
        "The save at {} is replaced faster than it can be read: read it while nobody saves.",
        path.display()
    )]
    Replaced {
        /// The save.
        path: PathBuf,
    },

    /// A file is there already and was not to be.
    #[error("The file {} already exists.", path.display())]
    FileExists {
        /// The file.
        path: PathBuf,
    },

    /// The save was asked to stop.
    #[error("the save was cancelled; what was there before is as it was")]
    Cancelled,

    /// A file is not an archive.
    #[error("{} is not an archive: {reason}", path.display())]
    NotArchive {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },

    /// An entry of an archive is invalid.
    #[error("the entry '{name}' of the archive '{}' is damaged: {reason}", path.display())]
    BadEntry {
        /// The archive.
        path: PathBuf,
        /// The entry.
        name: String,
        /// The reason.
        reason: String,
    },

    /// An archive is to be written where a directory is.
    #[error("Cannot write an archive at {}: it is an existing directory.", path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },

    /// An entry of an archive cannot be mapped for writing.
    #[error("Cannot open {} with mode='r+': {reason}", path.display())]
    NotWritable {
        /// The archive.
        path: PathBuf,
        /// The reason.
        reason: String,
    },

    /// Bytes are not those that were saved.
    #[error("{}", .damages.join("\n"))]
    Damaged {
        /// The damage of each file, with key and file.
        damages: Vec<String>,
    },

    /// A file or directory of the target is a symbolic link.
    #[error("Refusing to write a memory-mapped TensorDict through symlink {}.", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },

    /// A link of a save leads to a file that is not part of it.
    #[error(
        "{}leads out of the save: '{}'. Replace it by the file, or load the directory that it \
         leads to",
        way_out(path, key), path.display()
    )]
    LeadsOut {
        /// The link.
        path: PathBuf,
        /// The entry, displayed.
        key: String,
    },

    /// More leaves than the kernel maps files.
    #[error(
        "'{}' holds {count} tensors, more than the {limit} files that this process may map \
         (vm.max_map_count): load it with mode='r', which reads small tensors together, or save \
         it as an archive (a path that ends with '.tdz'), which is one mapping",
        path.display()
    )]
    TooManyLeaves {
        /// The save.
        path: PathBuf,
        /// The number of its leaves.
        count: usize,
        /// The number of leaves that can be mapped.
        limit: usize,
    },

    /// The kernel has no more room for mappings.
    #[error(
        "the entry {key} ('{}') cannot be mapped: {source}. This process holds about as many \
         mappings as the kernel allows (vm.max_map_count): raise that limit, load fewer \
         entries (subpath=), or save many small entries as one tensor",
        path.display()
    )]
    NoMapping {
        /// The file.
        path: PathBuf,
        /// The entry, displayed.
        key: String,
        /// The refusal.
        source: io::Error,
    },
}

impl StorageError {
    /// A refusal of the operating system, about `path`.
    pub fn io(path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            key: String::new(),
            source: source.into(),
        }
    }

    /// A refusal of the operating system, about `path`, the file of the entry `key`.
    pub fn io_of(
        key: impl Into<String>,
        path: impl AsRef<Path>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io {
            path: path.as_ref().to_path_buf(),
            key: key.into(),
            source: source.into(),
        }
    }
}

/// Describes the link that leads out of a save.
fn way_out(path: &Path, key: &str) -> String {
    let file = match key {
        "" => "a file ".to_owned(),
        key => format!("the file of the entry {key} "),
    };
    let is_named = path.components().any(|part| part == Component::ParentDir);
    let how = if is_named {
        ""
    } else {
        "is a symbolic link that "
    };
    format!("{file}{how}")
}

fn entry_prefix(key: &str) -> String {
    if key.is_empty() {
        String::new()
    } else {
        format!("the entry {key}: ")
    }
}
