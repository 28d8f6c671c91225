//! One level of a plan: its entries with the names of their files, and who uses which name.
//!
//! Saves have thousands of leaves in a level, so what is kept of each is little: keys and names lie in one
//! text, and leaves that follow each other and are alike share what the metadata says of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::path::PathBuf;
use std::sync::Arc;

use foldhash::quality::RandomState;

use super::super::METADATA_FILE;
use super::super::metadata::{Described, LeafMeta};

/// The suffix of the names of the files of leaves.
pub(super) const LEAF_SUFFIX: &str = ".memmap";

#[derive(Debug, Default)]
pub(crate) struct PlannedLevel {
    /// The keys from the root to here.
    pub(crate) keys: Vec<String>,
    /// The directory, relative to the root.
    pub(crate) path: PathBuf,
    pub(super) is_closed: bool,
    entries: Vec<PlannedEntry>,
    /// The keys of the entries and the names of their files, one after the other.
    texts: String,
    /// The user of each name in the directory. The files of leaves are here only once there is
    /// another name of their kind: the keys of a level differ, and so do names that are made of them.
    used: HashMap<Box<str>, User, RandomState>,
    lists_leaves: bool,
}

/// An entry, whose key and name are in the texts of its level.
#[derive(Debug)]
struct PlannedEntry {
    key_start: usize,
    /// The key itself where it needs no escaping: then it is the beginning of the name.
    name_start: usize,
    key_bytes: usize,
    name_bytes: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    Leaf(Arc<LeafMeta>),
    /// A nested collection, by the bare name of its class.
    Child(Box<str>),
}

/// The user of a name in a directory.
#[derive(Debug, Clone, Copy)]
pub(super) enum User {
    /// The layout.
    Layout,
    /// The entry at this place of the level.
    Entry(usize),
    /// The file itself: what a class keeps beside its metadata.
    File,
}

impl PlannedLevel {
    pub(super) fn new(keys: Vec<String>, path: PathBuf) -> Self {
        Self {
            keys,
            path,
            used: HashMap::from_iter([(METADATA_FILE.into(), User::Layout)]),
            ..Self::default()
        }
    }

    /// Makes room for so many more entries.
    pub(super) fn reserve(&mut self, count: usize) {
        self.entries.reserve(count);
        self.texts.reserve(16 * count);
    }

    /// Returns the number of entries, which is the place of the next one.
    pub(super) fn num_entries(&self) -> usize {
        self.entries.len()
    }

    /// Adds a leaf, whose file is named after `stem`, the escaped key; who has that name already, where
    /// somebody has.
    pub(super) fn add_leaf(
        &mut self,
        key: &str,
        stem: &str,
        meta: Arc<LeafMeta>,
    ) -> Result<(), User> {
        let (texts, names) = (self.texts.len(), self.entries.len());
        if key != stem {
            self.texts.push_str(key);
        }
        let name_start = self.texts.len();
        self.texts.push_str(stem);
        self.texts.push_str(LEAF_SUFFIX);
        self.entries.push(PlannedEntry {
            key_start: texts,
            name_start,
            key_bytes: key.len(),
            name_bytes: self.texts.len() - name_start,
            what: What::Leaf(meta),
        });
        if !self.lists_leaves {
            return Ok(());
        }
        let listed = self.list(self.name_of(names).into(), User::Entry(names));
        if listed.is_err() {
            self.entries.pop();
            self.texts.truncate(texts);
        }
        listed
    }

    /// Adds a nested collection, whose name is claimed.
    pub(super) fn add_child(&mut self, key: &str, class_name: &str) {
        let key_start = self.texts.len();
        self.texts.push_str(key);
        self.entries.push(PlannedEntry {
            key_start,
            name_start: key_start,
            key_bytes: key.len(),
            name_bytes: 0,
            what: What::Child(class_name.into()),
        });
    }

    /// Claims a name that is not that of the file of a leaf; who has it already, where somebody has.
    pub(super) fn claim(&mut self, name: &str, user: User) -> Result<(), User> {
        if !self.lists_leaves && name.ends_with(LEAF_SUFFIX) {
            self.lists_leaves = true;
            for entry in 0..self.entries.len() {
                if matches!(self.entries[entry].what, What::Leaf(_)) {
                    self.list(self.name_of(entry).into(), User::Entry(entry))?;
                }
            }
        }
        self.list(name.into(), user)
    }

    fn list(&mut self, name: Box<str>, user: User) -> Result<(), User> {
        match self.used.entry(name) {
            Slot::Vacant(slot) => {
                slot.insert(user);
                Ok(())
            }
            Slot::Occupied(slot) => Err(*slot.get()),
        }
    }

    /// The key of an entry.
    pub(super) fn key_of(&self, entry: usize) -> &str {
        let entry = &self.entries[entry];
        &self.texts[entry.key_start..][..entry.key_bytes]
    }

    /// The name of the file of a leaf.
    pub(super) fn name_of(&self, entry: usize) -> &str {
        let entry = &self.entries[entry];
        &self.texts[entry.name_start..][..entry.name_bytes]
    }

    /// Returns the metadata of an entry that is a leaf.
    pub(super) fn meta_of(&self, entry: usize) -> Option<&Arc<LeafMeta>> {
        match &self.entries.get(entry)?.what {
            What::Leaf(meta) => Some(meta),
            What::Child(_) => None,
        }
    }

    /// The entries in their order, for the text of the metadata.
    pub(super) fn described(&self) -> impl Iterator<Item = (&str, Described<'_>)> + Clone {
        self.entries.iter().map(|entry| {
            let key = &self.texts[entry.key_start..][..entry.key_bytes];
            let described = match &entry.what {
                What::Leaf(meta) => Described::Leaf(meta),
                What::Child(class_name) => Described::Child(class_name),
            };
            (key, described)
        })
    }
}
