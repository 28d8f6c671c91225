//! Reading the metadata of a tree and mapping its leaves.
//!
//! [`read_tree`] takes in the metadata of a level and of the levels below it that have the
//! same layout; a child of any other class is named and left to its own reader. [`map_leaves`]
//! then opens, checks and maps the files with a few threads. Nothing is written, ever.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::map::{self, MapRequest, Mapping, Mode, Root, leads_out};
use super::metadata::{self, Entries, EntriesIter, Entry, LeafMeta, LevelMeta};
use super::names::{self, display_key};
use super::prefetch::{Batches, Prefetch, prefetch_batches, take_all};
use super::{MAX_LEVELS, METADATA_FILE, StorageError, StorageResult, dtype, thread_count};

/// Fewer leaves than this are mapped by the calling thread alone.
const SERIAL_LEAVES: usize = 64;

/// Leaves that a thread maps before it asks for more.
const BATCH_LEAVES: usize = 16;

/// So many files can be mapped on every system: the limit need not be asked for.
const SURE_LEAVES: usize = 10_000;

/// Leaves that share memory where there are more of them than the kernel maps files.
const BATCH_TOGETHER: usize = 1024;

/// Leaves of more bytes are mapped in any case.
const TOGETHER_BYTES: u64 = 64 << 10;

/// A level of a tree as it is on disk.
#[derive(Debug)]
pub struct Level {
    /// The directory.
    pub directory: PathBuf,
    /// The batch size; empty where the metadata has none.
    pub batch_size: Vec<i64>,
    /// `_type`.
    pub type_text: Option<String>,
    /// `_class`.
    pub class_text: Option<String>,
    /// The names of the dims.
    pub names: Option<Vec<Option<String>>>,
    /// True if the collection had a device.
    pub has_device: bool,
    /// True if its class is one of those that the reader knows.
    pub is_known: bool,
    /// The entries, in the order of the file.
    pub nodes: Vec<Node>,
}

/// The entry of a key.
#[derive(Debug)]
pub enum Node {
    /// Leaves that follow one another: their numbers in [`Tree::leaves`], where their keys are.
    Leaves(Range<usize>),
    /// A level of the same layout.
    Level {
        /// Its key.
        key: String,
        /// Its number in [`Tree::levels`].
        number: usize,
    },
    /// A directory of another layout.
    Foreign {
        /// Its key.
        key: String,
        /// The directory.
        path: PathBuf,
    },
}

/// The place of the leaves of a level.
#[derive(Debug, Default)]
pub struct Home {
    /// The keys of the level, from the root of the tree.
    pub keys: Vec<String>,
    /// Its directory.
    pub directory: PathBuf,
}

/// A leaf as the metadata describes it. A tree has many thousands, so it has no memory for what its key
/// and its level say.
#[derive(Debug)]
pub struct Leaf {
    /// The level that it is in.
    pub home: Arc<Home>,
    /// Its key in this level.
    pub key: String,
    /// True if the file has the name of the key as it is, and not escaped.
    pub is_raw: bool,
    /// Shape, dtype, kind.
    pub meta: LeafMeta,
    /// The bytes that shape and dtype need; 0 for none, and for a nested tensor, whose size
    /// is in its table.
    pub length: u64,
}

impl Leaf {
    /// The leaf whose bytes are in a file, which ends with `.memmap`.
    #[must_use]
    pub fn of_file(path: &Path, meta: LeafMeta, length: u64) -> Self {
        let part = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        Self {
            home: Arc::new(Home {
                keys: Vec::new(),
                directory: path.parent().unwrap_or(path).to_path_buf(),
            }),
            key: part(path.file_stem()),
            is_raw: true,
            meta,
            length,
        }
    }

    /// The keys from the root of the tree.
    #[must_use]
    pub fn keys(&self) -> Vec<&str> {
        path_to(&self.home.keys, &self.key)
    }

    /// The file of its bytes.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.file(".memmap")
    }

    fn file(&self, suffix: &str) -> PathBuf {
        if self.is_raw {
            return joined(&self.home.directory, &self.key, suffix);
        }
        joined(&self.home.directory, &names::escape(&self.key), suffix)
    }

    /// The key as messages show it.
    #[must_use]
    pub fn display(&self) -> String {
        display_key(&self.keys())
    }

    /// The file of the table of sizes of a nested tensor.
    #[must_use]
    pub fn table_path(&self) -> PathBuf {
        self.file(".shape.memmap")
    }
}

fn path_to<'k>(parents: &'k [String], key: &'k str) -> Vec<&'k str> {
    parents.iter().map(String::as_str).chain([key]).collect()
}

/// The metadata of a tree.
#[derive(Debug)]
pub struct Tree {
    /// The level that was asked for, then those below it: each after the one that it is in.
    pub levels: Vec<Level>,
    /// All leaves, in the order of the files, depth first.
    pub leaves: Vec<Leaf>,
}

/// The options for reading a tree.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions<'o> {
    /// True if keys were escaped to file names.
    pub escapes_keys: bool,
    /// The classes, by `_class` or `_type`, of the levels that this reader knows.
    pub known_classes: &'o [String],
}

/// The files of a tree: in directories, or in an archive.
pub trait Files: Sync {
    /// The bytes of a small file.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    fn read(&self, path: &Path) -> StorageResult<Vec<u8>>;

    /// Returns whether there is such a file, or a directory with metadata.
    fn exists(&self, path: &Path) -> bool;

    /// Returns whether a path is a link that leads out of the save.
    fn leads_out(&self, _path: &Path) -> bool {
        false
    }
}

impl Files for Root {
    fn read(&self, path: &Path) -> StorageResult<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self
            .open(path, false)
            .and_then(|mut file| file.read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(bytes),
            Err(source) if leads_out(&source) => Err(StorageError::LeadsOut {
                path: path.to_path_buf(),
                key: String::new(),
            }),
            Err(source) => Err(StorageError::io(path, source)),
        }
    }

    fn exists(&self, path: &Path) -> bool {
        self.has(path)
    }

    fn leads_out(&self, path: &Path) -> bool {
        self.is_link_out(path)
    }
}

/// The number of times that a directory that is replaced while it is read is read again.
const MAX_ATTEMPTS: usize = 1000;

/// Reads the metadata of the level in `directory` and of those below. A level of a class that is
/// not known has no nodes.
///
/// All of it is of one save, also where others take its place meanwhile.
///
/// # Errors
/// A metadata file is missing or invalid; a child directory is missing; the directory is
/// replaced again and again.
pub fn read_tree(directory: &Path, options: ReadOptions<'_>) -> StorageResult<Tree> {
    for _ in 0..MAX_ATTEMPTS {
        let root = Root::open_path(directory).map_err(|source| {
            // The caller asks for the metadata, so the error names that.
            StorageError::io(directory.join(METADATA_FILE), source)
        })?;
        let tree = read_tree_of(&root, directory, options);
        if !root.was_replaced(tree.is_ok()) {
            return tree;
        }
    }
    Err(StorageError::Replaced {
        path: directory.to_path_buf(),
    })
}

/// Reads the metadata of a tree wherever it is.
///
/// # Errors
/// Those of [`read_tree`].
pub fn read_tree_of(
    files: &dyn Files,
    directory: &Path,
    options: ReadOptions<'_>,
) -> StorageResult<Tree> {
    let mut reader = Reader {
        files,
        options,
        levels: Vec::new(),
        leaves: Vec::new(),
    };
    let meta = reader.metadata(&directory.join(METADATA_FILE))?;
    reader.all(directory.to_path_buf(), meta)?;
    Ok(Tree {
        levels: reader.levels,
        leaves: reader.leaves,
    })
}

struct Reader<'o> {
    files: &'o dyn Files,
    options: ReadOptions<'o>,
    levels: Vec<Level>,
    leaves: Vec<Leaf>,
}

/// A level that is being read.
struct Open {
    number: usize,
    home: Arc<Home>,
    /// The entries that are left.
    entries: EntriesIter,
}

impl Reader<'_> {
    fn metadata(&self, path: &Path) -> StorageResult<LevelMeta> {
        metadata::read_level(path, self.files.read(path)?)
    }

    /// Reads a level and those below, depth first. Levels that are not at their end are kept in a
    /// list, so that depth costs no stack.
    fn all(&mut self, directory: PathBuf, meta: LevelMeta) -> StorageResult<()> {
        let home = Home {
            keys: Vec::new(),
            directory,
        };
        let mut open = vec![self.begin(home, meta)];
        while let Some(level) = open.last_mut() {
            let Some((key, entry)) = level.entries.next() else {
                open.pop();
                continue;
            };
            let number = level.number;
            let node = match entry {
                Entry::Leaf(leaf) => {
                    self.leaf(level, key, leaf)?;
                    continue;
                }
                Entry::Child(_) => match self.child(level, &key)? {
                    (path, Some(meta)) => {
                        let home = Home {
                            keys: level.home.keys.iter().chain([&key]).cloned().collect(),
                            directory: path,
                        };
                        let child = self.begin(home, meta);
                        let node = Node::Level {
                            key,
                            number: child.number,
                        };
                        self.levels[number].nodes.push(node);
                        open.push(child);
                        continue;
                    }
                    (path, None) => Node::Foreign { key, path },
                },
            };
            self.levels[number].nodes.push(node);
        }
        Ok(())
    }

    /// Adds a level without its nodes.
    fn begin(&mut self, home: Home, meta: LevelMeta) -> Open {
        let is_known = self.is_known(&meta);
        let entries = if is_known {
            meta.entries
        } else {
            Entries::default()
        };
        self.leaves.reserve(entries.most());
        self.levels.push(Level {
            directory: home.directory.clone(),
            batch_size: meta.batch_size.unwrap_or_default(),
            type_text: meta.type_text,
            class_text: meta.class_text,
            names: meta.names,
            has_device: meta.has_device,
            is_known,
            nodes: Vec::new(),
        });
        Open {
            number: self.levels.len() - 1,
            home: Arc::new(home),
            entries: entries.into_iter(),
        }
    }

    fn leaf(&mut self, level: &Open, key: String, meta: LeafMeta) -> StorageResult<()> {
        let Home { keys, directory } = &*level.home;
        let file = || directory.join(METADATA_FILE);
        let display = || display_key(&path_to(keys, &key));
        let item_size =
            dtype::item_size(&meta.dtype).ok_or_else(|| StorageError::UnknownDtype {
                path: file(),
                key: display(),
                dtype: meta.dtype.clone().into_owned(),
            })?;
        let length = dtype::tensor_bytes(&meta.shape, item_size).ok_or_else(|| {
            StorageError::BadMetadata {
                path: file(),
                key: display(),
                reason: "its shape is larger than any memory".to_owned(),
            }
        })?;
        let length = if meta.is_nested { 0 } else { length };
        let is_raw = self.is_raw(directory, &key, ".memmap");
        let number = self.leaves.len();
        self.leaves.push(Leaf {
            home: level.home.clone(),
            key,
            is_raw,
            meta,
            length,
        });
        match self.levels[level.number].nodes.last_mut() {
            Some(Node::Leaves(numbers)) if numbers.end == number => numbers.end += 1,
            _ => {
                let only = Node::Leaves(number..number + 1);
                self.levels[level.number].nodes.push(only);
            }
        }
        Ok(())
    }

    /// The directory of a child, and its metadata where the layout is the same.
    fn child(&self, level: &Open, key: &str) -> StorageResult<(PathBuf, Option<LevelMeta>)> {
        let Home { keys, directory } = &*level.home;
        let display = || display_key(&path_to(keys, key));
        let path = if self.is_raw(directory, key, "") {
            joined(directory, key, "")
        } else {
            joined(directory, &names::escape(key), "")
        };
        if keys.len() >= MAX_LEVELS {
            return Err(StorageError::TooDeep { path });
        }
        if self.files.leads_out(&path) {
            return Err(StorageError::LeadsOut {
                path,
                key: display(),
            });
        }
        let file = path.join(METADATA_FILE);
        let meta = match self.metadata(&file) {
            Err(StorageError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                return Err(StorageError::MissingFile {
                    path: file,
                    key: display(),
                });
            }
            meta => meta?,
        };
        let is_known = self.is_known(&meta);
        Ok((path, is_known.then_some(meta)))
    }

    /// Returns whether a level is of the layout that this reader knows.
    fn is_known(&self, meta: &LevelMeta) -> bool {
        [&meta.class_text, &meta.type_text]
            .into_iter()
            .flatten()
            .any(|class| self.options.known_classes.contains(class))
    }

    /// Returns whether the file or directory of a key has the key's name as it is: where names are
    /// not escaped, and where the escaped name is missing and that of older versions, which did not
    /// escape, is there.
    fn is_raw(&self, directory: &Path, key: &str, suffix: &str) -> bool {
        if !self.options.escapes_keys {
            return true;
        }
        let name = names::escape(key);
        name != key
            && names::is_safe_raw_name(key)
            && !self.files.exists(&joined(directory, &name, suffix))
            && self.files.exists(&joined(directory, key, suffix))
    }
}

/// A path in a directory, in one piece of memory.
fn joined(directory: &Path, name: &str, suffix: &str) -> PathBuf {
    let directory = directory.as_os_str();
    let mut path = OsString::with_capacity(directory.len() + 1 + name.len() + suffix.len());
    path.push(directory);
    if !matches!(directory.as_bytes(), [] | [.., b'/']) {
        path.push("/");
    }
    path.push(name);
    path.push(suffix);
    PathBuf::from(path)
}

/// Maps the files of all leaves that have bytes, in order; None for those that have none.
///
/// # Errors
/// A file is missing, too short, or not writable in [`Mode::Shared`]: the first such leaf
/// in the order of the threads.
pub fn map_leaves(
    root: &Root,
    leaves: &[Leaf],
    mode: Mode,
    threads: usize,
) -> StorageResult<Vec<Option<Mapping>>> {
    prefetch_mappings(root, leaves, mode, threads, take_all)?
}

/// Maps leaves with a few threads while `take` goes on with those that are mapped.
///
/// # Errors
/// There are more leaves than the kernel maps files, and `mode` needs a mapping each.
pub fn prefetch_mappings<R>(
    root: &Root,
    leaves: &[Leaf],
    mode: Mode,
    threads: usize,
    take: impl FnOnce(Prefetch<'_, Vec<Option<Mapping>>>) -> R,
) -> StorageResult<R> {
    let limit = if leaves.len() > SURE_LEAVES {
        map::mapping_limit()
    } else {
        SURE_LEAVES
    };
    let reads_together = leaves.len() > limit;
    if reads_together && mode != Mode::Private {
        return Err(StorageError::TooManyLeaves {
            path: root.path().to_path_buf(),
            count: leaves.len(),
            limit,
        });
    }
    let threads = if leaves.len() < SERIAL_LEAVES {
        1
    } else {
        thread_count(threads)
    };
    let batch_leaves = if reads_together {
        BATCH_TOGETHER
    } else {
        BATCH_LEAVES
    };
    let count = leaves.len().div_ceil(batch_leaves);
    let work = MapWork {
        root,
        leaves,
        mode,
        reads_together,
        batch_leaves,
    };
    let batches = Batches {
        count,
        threads,
        helper_quarters: MAPPING_QUARTERS,
    };
    Ok(prefetch_batches(
        batches,
        &|batch| work.map_batch(batch),
        take,
    ))
}

/// Making a tensor of a leaf takes about this part of the time that mapping it takes, in quarters.
const MAPPING_QUARTERS: usize = 1;

/// State that the threads that map leaves share.
struct MapWork<'m> {
    root: &'m Root,
    leaves: &'m [Leaf],
    mode: Mode,
    reads_together: bool,
    batch_leaves: usize,
}

impl MapWork<'_> {
    fn map_batch(&self, batch: usize) -> StorageResult<Vec<Option<Mapping>>> {
        let start = batch * self.batch_leaves;
        let end = (start + self.batch_leaves).min(self.leaves.len());
        let leaves = &self.leaves[start..end];
        let paths: Vec<PathBuf> = leaves.iter().map(Leaf::path).collect();
        let request = |number: usize| MapRequest {
            path: &paths[number],
            length: leaves[number].length,
            root: Some(self.root),
        };
        let is_small = |leaf: &Leaf| self.reads_together && leaf.length <= TOGETHER_BYTES;
        let together: Vec<_> = leaves
            .iter()
            .enumerate()
            .filter(|(_, leaf)| leaf.length > 0 && is_small(leaf))
            .map(|(number, leaf)| (request(number), || leaf.display()))
            .collect();
        let mut read = Vec::new();
        if !together.is_empty() {
            let requests: Vec<(MapRequest<'_>, &dyn Fn() -> String)> = together
                .iter()
                .map(|(request, name)| (request.clone(), name as &dyn Fn() -> String))
                .collect();
            read = map::read_together(&requests)?;
        }
        let mut read = read.into_iter();
        leaves
            .iter()
            .enumerate()
            .map(|(number, leaf)| match leaf.length {
                0 => Ok(None),
                _ if is_small(leaf) => Ok(read.next()),
                _ => map::open(&request(number), self.mode, &|| leaf.display()).map(Some),
            })
            .collect()
    }
}
