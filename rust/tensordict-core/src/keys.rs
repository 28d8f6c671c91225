//! Nested keys: the plans that regroup entries.
//!
//! A plan says which entries go where. It holds positions and names and never an entry, so
//! that the bindings can carry it out on any collection.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;

use smallvec::SmallVec;

use crate::{Refused, Result};

/// The parts of a nested key, that of the outermost collection first; few keys are longer.
pub type Path<K = String> = SmallVec<[K; 4]>;

/// The name of the entry `part` in a collection without nested ones, where `prefix` is that
/// of the collection it was in: the two joined by `separator`.
#[must_use]
pub fn joined<'k>(prefix: Option<&str>, separator: &str, part: &'k str) -> Cow<'k, str> {
    match prefix {
        None => Cow::Borrowed(part),
        Some(prefix) => Cow::Owned([prefix, separator, part].concat()),
    }
}

/// The entries of a collection that a plan builds, by name and in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branch<'k> {
    /// The entries.
    pub entries: Vec<(&'k str, Node<'k>)>,
    // The place of each name.
    places: HashMap<&'k str, usize>,
}

/// One entry of the collection that a plan builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node<'k> {
    /// The entry at this position of the list that was planned.
    Entry(usize),
    /// A nested collection with these entries.
    Branch(Branch<'k>),
}

/// The nested collections that entries with the flat `names` form when each name is taken
/// apart at `separator`. Collections stand where their first entry stood.
///
/// # Errors
/// One name runs through the entry of another, two are the same, or one names another's collection.
pub fn unflatten_plan<'k>(names: &[&'k str], separator: &str) -> Result<Branch<'k>> {
    let mut root = Branch::default();
    for (position, name) in names.iter().enumerate() {
        let parts: Path<&str> = if separator.is_empty() {
            SmallVec::from_slice(&[*name])
        } else {
            name.split(separator).collect()
        };
        root.insert(&parts, position)?;
    }
    Ok(root)
}

impl<'k> Branch<'k> {
    fn insert(&mut self, parts: &[&'k str], position: usize) -> Result<()> {
        let (head, rest) = (parts[0], &parts[1..]);
        let Some(&place) = self.places.get(head) else {
            let node = if rest.is_empty() {
                Node::Entry(position)
            } else {
                let mut inner = Self::default();
                inner.insert(rest, position)?;
                Node::Branch(inner)
            };
            self.places.insert(head, self.entries.len());
            self.entries.push((head, node));
            return Ok(());
        };
        match &mut self.entries[place].1 {
            _ if rest.is_empty() => Err(Refused),
            Node::Branch(inner) => inner.insert(rest, position),
            Node::Entry(_) => Err(Refused),
        }
    }
}

/// One entry of a selection or exclusion: its key, and the rest of each path that begins with it.
/// An empty rest means the entry itself.
pub type Group<'p, K> = (&'p K, SmallVec<[&'p [K]; 2]>);

/// Groups `paths` by their first part, keeping the order in which those come first: one
/// level of a nested selection. Empty paths are left out.
#[must_use]
pub fn group_by_head<'p, K: Eq + Hash>(paths: &[&'p [K]]) -> Vec<Group<'p, K>> {
    let mut groups: Vec<Group<'p, K>> = Vec::with_capacity(paths.len());
    let mut places = HashMap::with_capacity(paths.len());
    for path in paths {
        let Some((head, rest)) = path.split_first() else {
            continue;
        };
        let place = *places.entry(head).or_insert_with(|| {
            groups.push((head, SmallVec::new()));
            groups.len() - 1
        });
        groups[place].1.push(rest);
    }
    groups
}
