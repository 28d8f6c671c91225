//! The plan of a save: every directory, file, size and byte of metadata, before the first is
//! written.
//!
//! Whoever walks the collections adds levels and leaves; each addition is checked, so that
//! a plan that exists can be written: no two entries share a file, no entry is lost under a
//! field of the metadata, no name is too long.

mod level;

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

pub(crate) use self::level::PlannedLevel;
use self::level::{LEAF_SUFFIX, User};
use super::checksums::CHECKSUMS_FILE;
use super::map::FileIdentity;
use super::metadata::{self, LeafMeta, LevelFields};
use super::names::{self, display_key};
use super::region::Region;
use super::source::Source;
use super::{MAX_LEVELS, METADATA_FILE, StorageError, StorageResult};

/// The longest file name that the usual file systems take, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// The source of the bytes of a leaf.
#[derive(Debug, Clone)]
pub enum Content {
    /// Memory of a tensor, or bytes of our own.
    Data(Source),
    /// A file that holds these bytes already: it is linked, and copied from memory where links do not
    /// work.
    Link(Box<Link>),
    /// Nothing: the leaf is only described, and its file is of zeros that take no space.
    Absent,
}

/// A file that is mapped.
#[derive(Debug, Clone)]
pub struct Link {
    /// The file.
    pub path: PathBuf,
    /// Its mapped memory.
    pub memory: Region,
    /// The identity of that file: another save can give the name to another one.
    pub file: FileIdentity,
}

/// A file of the save.
#[derive(Debug, Clone)]
pub(crate) enum PlannedFile {
    /// That of a leaf, by its number.
    Leaf(usize),
    /// One whose bytes are known.
    Bytes(Box<KnownFile>),
}

/// A file whose bytes are known.
#[derive(Debug, Clone)]
pub(crate) struct KnownFile {
    level: usize,
    name: Box<str>,
    bytes: Vec<u8>,
}

impl KnownFile {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A leaf of the save.
#[derive(Debug, Clone)]
pub(crate) struct PlannedLeaf {
    pub(crate) level: usize,
    /// Its place among the entries of the level.
    entry: usize,
    pub(crate) length: u64,
    pub(crate) content: Content,
}

/// A save, planned.
#[derive(Debug)]
pub struct Plan {
    pub(crate) levels: Vec<PlannedLevel>,
    pub(crate) leaves: Vec<PlannedLeaf>,
    pub(crate) files: Vec<PlannedFile>,
    escapes_keys: bool,
}

impl Plan {
    /// The number of the root's level.
    pub const ROOT: usize = 0;

    /// A plan with an open root level. With `escapes_keys` false keys are file names as they are:
    /// the legacy layout.
    #[must_use]
    pub fn new(escapes_keys: bool) -> Self {
        let mut plan = Self {
            levels: Vec::new(),
            leaves: Vec::new(),
            files: Vec::new(),
            escapes_keys,
        };
        plan.push_level(Vec::new(), PathBuf::new());
        plan
    }

    fn push_level(&mut self, keys: Vec<String>, path: PathBuf) -> usize {
        let is_root = self.levels.is_empty();
        let mut level = PlannedLevel::new(keys, path);
        if is_root {
            let claimed = level.claim(CHECKSUMS_FILE, User::Layout);
            claimed.expect("nobody has it before");
        }
        self.levels.push(level);
        self.levels.len() - 1
    }

    /// Makes room for entries of a level, so that adding them moves nothing.
    pub fn reserve(&mut self, level: usize, count: usize) {
        self.leaves.reserve(count);
        self.files.reserve(count);
        self.levels[level].reserve(count);
    }

    /// A key of a level as messages show it.
    #[must_use]
    pub fn display(&self, level: usize, key: &str) -> String {
        let mut keys: Vec<&str> = self.levels[level].keys.iter().map(String::as_str).collect();
        keys.push(key);
        display_key(&keys)
    }

    /// Opens the level of a nested collection. `class_name` is the bare name of its class.
    ///
    /// # Errors
    /// The key is reserved, its name is taken or too long; collections are nested too deep.
    pub fn add_child(&mut self, level: usize, key: &str, class_name: &str) -> StorageResult<usize> {
        self.refuse_reserved(level, key)?;
        let name = self.escaped(level, key)?;
        self.claim_for_entry(level, key, &name)?;
        let parent = &mut self.levels[level];
        let mut keys = parent.keys.clone();
        keys.push(key.to_owned());
        parent.add_child(key, class_name);
        let path = parent.path.join(&*name);
        if keys.len() > MAX_LEVELS {
            return Err(StorageError::TooDeep { path });
        }
        Ok(self.push_level(keys, path))
    }

    /// Adds a leaf of `length` bytes; its number. A leaf of no bytes has no file.
    ///
    /// `table` is the table of sizes of a nested tensor, as bytes. Leaves that are alike may share
    /// their metadata.
    ///
    /// # Errors
    /// The key is reserved, its name is taken or too long.
    pub fn add_leaf(
        &mut self,
        level: usize,
        key: &str,
        meta: impl Into<Arc<LeafMeta>>,
        length: u64,
        content: Content,
        table: Option<Vec<u8>>,
    ) -> StorageResult<usize> {
        self.refuse_reserved(level, key)?;
        let stem = self.escaped(level, key)?;
        let entry = self.levels[level].num_entries();
        self.check_length(level, key, stem.len() + LEAF_SUFFIX.len(), &stem)?;
        self.levels[level]
            .add_leaf(key, &stem, meta.into())
            .map_err(|user| self.taken(level, user, key, &format!("{stem}{LEAF_SUFFIX}")))?;
        if let Some(table) = table {
            let name = format!("{stem}.shape.memmap");
            self.claim(level, User::Entry(entry), key, &name)?;
            if !table.is_empty() {
                self.push_file(level, &name, table);
            }
        }
        let number = self.leaves.len();
        if length > 0 {
            self.files.push(PlannedFile::Leaf(number));
        }
        self.leaves.push(PlannedLeaf {
            level,
            entry,
            length,
            content,
        });
        Ok(number)
    }

    /// Closes a level: its metadata file is planned.
    ///
    /// # Errors
    /// The level has names, and an entry whose key is the field of the names.
    pub fn close_level(&mut self, level: usize, fields: &LevelFields) -> StorageResult<()> {
        let entries = || self.levels[level].described();
        if fields.names.is_some() && metadata::has_key(entries(), "_names") {
            return Err(StorageError::ReservedKey {
                key: self.display(level, "_names"),
                field: "_names".to_owned(),
            });
        }
        let text = metadata::level_text(&entries(), fields);
        self.close_level_as(level, text);
        Ok(())
    }

    /// Closes a level of another layout with the text of its metadata.
    pub fn close_level_as(&mut self, level: usize, text: String) {
        self.push_file(level, METADATA_FILE, text.into_bytes());
        self.levels[level].is_closed = true;
    }

    /// Adds a file whose bytes are known: pickled values, and what else a class keeps beside its
    /// metadata.
    ///
    /// # Errors
    /// Its name is taken.
    pub fn add_file(&mut self, level: usize, name: &str, bytes: Vec<u8>) -> StorageResult<()> {
        self.claim(level, User::File, name, name)?;
        self.push_file(level, name, bytes);
        Ok(())
    }

    fn push_file(&mut self, level: usize, name: &str, bytes: Vec<u8>) {
        let name = name.into();
        let file = KnownFile { level, name, bytes };
        self.files.push(PlannedFile::Bytes(Box::new(file)));
    }

    /// The level of a file.
    pub(crate) fn file_level(&self, file: &PlannedFile) -> usize {
        match file {
            PlannedFile::Leaf(leaf) => self.leaves[*leaf].level,
            PlannedFile::Bytes(file) => file.level,
        }
    }

    /// The name of a file in the directory of its level.
    pub(crate) fn file_name<'p>(&'p self, file: &'p PlannedFile) -> &'p str {
        match file {
            PlannedFile::Leaf(leaf) => self.leaf_name(*leaf),
            PlannedFile::Bytes(file) => &file.name,
        }
    }

    /// Returns the metadata of a leaf.
    #[must_use]
    pub fn leaf_meta(&self, leaf: usize) -> Option<&Arc<LeafMeta>> {
        let leaf = &self.leaves[leaf];
        self.levels[leaf.level].meta_of(leaf.entry)
    }

    /// The name of the file of a leaf in the directory of its level.
    pub(crate) fn leaf_name(&self, leaf: usize) -> &str {
        let leaf = &self.leaves[leaf];
        self.levels[leaf.level].name_of(leaf.entry)
    }

    /// All files, each with its number, in an order in which they can take their places one by one: the
    /// metadata after what it names, and so the root's at the very end.
    pub(crate) fn files_root_last(&self) -> Vec<(usize, &PlannedFile)> {
        let mut files: Vec<_> = self.files.iter().enumerate().collect();
        files.sort_by_key(|(_, file)| {
            // A level is opened after the one that it is in, but is closed before or after.
            let is_metadata = self.file_name(file) == METADATA_FILE;
            is_metadata.then_some(std::cmp::Reverse(self.file_level(file)))
        });
        files
    }

    /// The file of a leaf, relative to the root. A leaf of no bytes has none, and would be here.
    #[must_use]
    pub fn leaf_path(&self, leaf: usize) -> PathBuf {
        let leaf = &self.leaves[leaf];
        let level = &self.levels[leaf.level];
        level.path.join(level.name_of(leaf.entry))
    }

    /// The directory of a level, relative to the root.
    #[must_use]
    pub fn level_path(&self, level: usize) -> &Path {
        &self.levels[level].path
    }

    /// Returns whether every level has its metadata.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.levels.iter().all(|level| level.is_closed)
    }

    /// Sets the source of a leaf's bytes, which can be settled late, when the target is known.
    pub fn set_content(&mut self, leaf: usize, content: Content) {
        self.leaves[leaf].content = content;
    }

    /// Copies the leaves whose bytes lie in files of `target` that the plan writes over: a file that
    /// is overwritten while it is read would be a mixture. `mapped` says of leaves, by their
    /// numbers, which file they lie in.
    ///
    /// # Errors
    /// Those of [`Source::to_vec`].
    pub fn copy_overwritten(
        &mut self,
        target: &Path,
        mapped: impl Iterator<Item = (usize, FileIdentity)>,
    ) -> io::Result<()> {
        let written = (0..self.leaves.len())
            .filter_map(|number| FileIdentity::of_path(&target.join(self.leaf_path(number))));
        for number in leaves_in(mapped, written) {
            if let Content::Data(source) = &mut self.leaves[number].content {
                *source = Source::Bytes(source.to_vec()?);
            }
        }
        Ok(())
    }

    /// Returns whether a leaf's file is that of the target already.
    #[must_use]
    pub fn is_link(&self, leaf: usize) -> bool {
        matches!(self.leaves[leaf].content, Content::Link(_))
    }

    /// Returns whether any leaf's file is one of zeros.
    pub(crate) fn has_zeros(&self) -> bool {
        let mut leaves = self.leaves.iter();
        leaves.any(|leaf| leaf.length > 0 && matches!(leaf.content, Content::Absent))
    }

    /// Returns whether any leaf's file is that of the target already.
    pub(crate) fn has_links(&self) -> bool {
        (0..self.leaves.len()).any(|leaf| self.is_link(leaf))
    }

    /// A leaf's key as messages show it.
    pub(crate) fn display_leaf(&self, leaf: &PlannedLeaf) -> String {
        self.display(leaf.level, self.levels[leaf.level].key_of(leaf.entry))
    }

    pub(crate) fn file_path(&self, file: &PlannedFile) -> PathBuf {
        let level = &self.levels[self.file_level(file)];
        level.path.join(self.file_name(file))
    }

    fn escaped<'k>(&self, level: usize, key: &'k str) -> StorageResult<Cow<'k, str>> {
        if self.escapes_keys {
            return Ok(names::escape(key));
        }
        if names::is_file_name(key) {
            return Ok(Cow::Borrowed(key));
        }
        let path = self.levels[level].path.join(format!("{key}.memmap"));
        Err(StorageError::io_of(
            self.display(level, key),
            path,
            Errno::NOENT,
        ))
    }

    /// Refuses an entry that the metadata would have no place for.
    fn refuse_reserved(&self, level: usize, key: &str) -> StorageResult<()> {
        if metadata::is_reserved(key) {
            return Err(StorageError::ReservedKey {
                key: self.display(level, key),
                field: key.to_owned(),
            });
        }
        Ok(())
    }

    /// A leaf's key in its level.
    pub(crate) fn leaf_key(&self, leaf: usize) -> &str {
        let leaf = &self.leaves[leaf];
        self.levels[leaf.level].key_of(leaf.entry)
    }

    /// Claims a name for the entry that is added next.
    fn claim_for_entry(&mut self, level: usize, key: &str, name: &str) -> StorageResult<()> {
        let user = User::Entry(self.levels[level].num_entries());
        self.claim(level, user, key, name)
    }

    fn claim(&mut self, level: usize, user: User, key: &str, name: &str) -> StorageResult<()> {
        self.check_length(level, key, name.len(), name)?;
        let claimed = self.levels[level].claim(name, user);
        claimed.map_err(|first| self.taken(level, first, key, name))
    }

    fn check_length(
        &self,
        level: usize,
        key: &str,
        name_bytes: usize,
        name: &str,
    ) -> StorageResult<()> {
        if name_bytes <= MAX_NAME_BYTES {
            return Ok(());
        }
        let path = self.levels[level].path.join(name);
        let key = self.display(level, key);
        Err(StorageError::io_of(key, path, Errno::NAMETOOLONG))
    }

    /// The error of a name that somebody has.
    fn taken(&self, level: usize, first: User, key: &str, name: &str) -> StorageError {
        let second = self.display(level, key);
        let first = match first {
            User::Layout => {
                return StorageError::ReservedKey {
                    key: second,
                    field: name.to_owned(),
                };
            }
            User::Entry(entry) => self.levels[level].key_of(entry),
            User::File => name,
        };
        StorageError::NameCollision {
            first: self.display(level, first),
            second,
            name: name.to_owned(),
        }
    }
}

/// The leaves that lie in one of the files `written`.
fn leaves_in<F: Eq + Hash>(
    mapped: impl Iterator<Item = (usize, F)>,
    written: impl Iterator<Item = F>,
) -> Vec<usize> {
    let mut mapped = mapped.peekable();
    if mapped.peek().is_none() {
        return Vec::new();
    }
    let written: HashSet<F> = written.collect();
    mapped
        .filter(|(_, file)| written.contains(file))
        .map(|(number, _)| number)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(
        plan: &mut Plan,
        level: usize,
        key: &str,
        table: Option<Vec<u8>>,
    ) -> StorageResult<usize> {
        let meta = LeafMeta {
            device: "cpu".into(),
            shape: vec![1].into(),
            dtype: "torch.uint8".into(),
            is_nested: table.is_some(),
        };
        plan.add_leaf(level, key, meta, 1, Content::Absent, table)
    }

    #[test]
    fn test_reserved_keys_are_refused_by_name() {
        let mut plan = Plan::new(true);
        let child = plan.add_child(Plan::ROOT, "n", "TensorDict").unwrap();
        for key in ["shape", "device", "_type"] {
            let message = leaf(&mut plan, child, key, None).unwrap_err().to_string();
            assert!(message.contains(&format!("('n', '{key}')")), "{message}");
        }
        for key in ["meta.json", "shape", "device", "_type"] {
            let refused = plan.add_child(child, key, "TensorDict");
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(&format!("('n', '{key}')")), "{message}");
        }
    }

    #[test]
    fn test_entries_that_would_share_a_file_are_refused() {
        let mut plan = Plan::new(true);
        leaf(&mut plan, Plan::ROOT, "a.shape", None).unwrap();
        let error = leaf(&mut plan, Plan::ROOT, "a", Some(vec![0; 8])).unwrap_err();
        assert!(
            matches!(error, StorageError::NameCollision { .. }),
            "{error}"
        );
        let mut plan = Plan::new(true);
        plan.add_child(Plan::ROOT, "a.memmap", "TensorDict")
            .unwrap();
        assert!(leaf(&mut plan, Plan::ROOT, "a", None).is_err());
    }

    #[test]
    fn test_long_names_are_refused_before_anything_is_written() {
        let mut plan = Plan::new(true);
        leaf(&mut plan, Plan::ROOT, &"x".repeat(248), None).unwrap();
        assert!(leaf(&mut plan, Plan::ROOT, &"y".repeat(249), None).is_err());
    }

    #[test]
    fn test_raw_names_stay_inside() {
        let mut plan = Plan::new(false);
        assert!(leaf(&mut plan, Plan::ROOT, "a/b", None).is_err());
        assert!(plan.add_child(Plan::ROOT, "..", "TensorDict").is_err());
        leaf(&mut plan, Plan::ROOT, "a b", None).unwrap();
        assert_eq!(plan.leaf_path(0), Path::new("a b.memmap"));
    }

    #[test]
    fn test_a_leaf_is_compared_with_few_files_however_many_there_are() {
        use std::cell::Cell;
        use std::hash::Hasher;

        thread_local! {
            static COMPARED: Cell<usize> = const { Cell::new(0) };
        }
        struct File(usize);
        impl PartialEq for File {
            fn eq(&self, other: &Self) -> bool {
                COMPARED.set(COMPARED.get() + 1);
                self.0 == other.0
            }
        }
        impl Eq for File {}
        impl Hash for File {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }
        let count = 10_000;
        let mapped = (0..count).map(|number| (number, File(2 * number)));
        let found = leaves_in(mapped, (0..count).map(File));
        assert_eq!(found, (0..count / 2).collect::<Vec<_>>());
        // Those that are equal, and the few whose hashes begin alike.
        assert!(COMPARED.get() < 3 * count, "{}", COMPARED.get());
    }
}
