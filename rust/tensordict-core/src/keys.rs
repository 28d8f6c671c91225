//! Nested keys: one form for all their spellings, and the plans that regroup entries.
//!
//! A key is a string, or a tuple of keys: `("a", ("b", "c"))` and `(("a",), "b", "c")`
//! name the same entry. The plans here say which entries go where; they hold positions
//! and names and never an entry, so that the bindings can carry them out on any container.

use std::collections::HashMap;
use std::hash::Hash;

use smallvec::SmallVec;

use crate::{Error, Result};

/// The parts of a nested key, that of the outermost container first; few keys are longer.
pub type Path<K = String> = SmallVec<[K; 4]>;

/// A nested key as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NestedKey<K = String> {
    /// A string.
    Part(K),
    /// A tuple of keys.
    Parts(Vec<NestedKey<K>>),
}

impl<K: Clone> NestedKey<K> {
    /// The parts of this key. None where it is no key: it, or a tuple in it, is empty.
    #[must_use]
    pub fn unravel(&self) -> Option<Path<K>> {
        let mut path = Path::new();
        self.append_to(&mut path).then_some(path)
    }

    fn append_to(&self, path: &mut Path<K>) -> bool {
        match self {
            Self::Part(part) => {
                path.push(part.clone());
                true
            }
            Self::Parts(parts) => {
                !parts.is_empty() && parts.iter().all(|part| part.append_to(path))
            }
        }
    }
}

/// The names that entries at `paths` have in a container without nested ones: their parts
/// joined by `separator`.
///
/// # Errors
/// [`Error::DuplicateKey`] where two entries would have the same name.
pub fn flatten_plan<S: AsRef<str>>(paths: &[Path<S>], separator: &str) -> Result<Vec<String>> {
    let mut seen = HashMap::with_capacity(paths.len());
    let mut names = Vec::with_capacity(paths.len());
    for path in paths {
        let parts: SmallVec<[&str; 4]> = path.iter().map(AsRef::as_ref).collect();
        let name = parts.join(separator);
        if seen.insert(name.clone(), ()).is_some() {
            return Err(Error::DuplicateKey { key: name });
        }
        names.push(name);
    }
    Ok(names)
}

/// The entries of a container by name, in order: what a plan builds.
pub type Branch<K> = Vec<(K, Node<K>)>;

/// One entry of the container that a plan builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node<K> {
    /// The entry at this position of the list that was planned.
    Entry(usize),
    /// A nested container with these entries.
    Branch(Branch<K>),
}

/// The nested containers that entries with the flat `names` form when each name is taken
/// apart at `separator`. Containers stand where their first entry stood.
///
/// # Errors
/// [`Error::KeyIsPrefix`] where one name runs through the entry of another, and
/// [`Error::DuplicateKey`] where two are the same.
pub fn unflatten_plan<'k>(names: &[&'k str], separator: &str) -> Result<Branch<&'k str>> {
    let mut root = Vec::new();
    for (position, name) in names.iter().enumerate() {
        let parts: Path<&str> = if separator.is_empty() {
            SmallVec::from_slice(&[*name])
        } else {
            name.split(separator).collect()
        };
        insert(&mut root, &parts, position, name)?;
    }
    Ok(root)
}

fn insert<'k>(
    branch: &mut Branch<&'k str>,
    parts: &[&'k str],
    position: usize,
    name: &str,
) -> Result<()> {
    let (head, rest) = (parts[0], &parts[1..]);
    // Containers have few entries, and most names share the container of the last one.
    let place = branch.iter().rposition(|(key, _)| *key == head);
    match (place, rest.is_empty()) {
        (None, true) => branch.push((head, Node::Entry(position))),
        (None, false) => {
            let mut inner = Vec::new();
            insert(&mut inner, rest, position, name)?;
            branch.push((head, Node::Branch(inner)));
        }
        (Some(_), true) => return Err(Error::DuplicateKey { key: name.into() }),
        (Some(place), false) => match &mut branch[place].1 {
            Node::Branch(inner) => insert(inner, rest, position, name)?,
            Node::Entry(_) => {
                return Err(Error::KeyIsPrefix {
                    key: name.into(),
                    leaf: head.into(),
                });
            }
        },
    }
    Ok(())
}

/// Which entries of a container a selection keeps, in the order given.
pub type Selection<K> = Vec<(K, Chosen<K>)>;

/// How much of one entry a selection keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen<K> {
    /// All of it, a nested container too.
    All,
    /// Of a nested container these entries.
    Some(Selection<K>),
}

/// Groups `paths` by their first part, keeping the order given: the plan of a nested
/// selection. A path that ends at a container chooses all of it, whatever else is named.
#[must_use]
pub fn selection_plan<K: Clone + Eq + Hash>(paths: &[Path<K>]) -> Selection<K> {
    let mut borrowed: Vec<&[K]> = Vec::with_capacity(paths.len());
    borrowed.extend(paths.iter().map(SmallVec::as_slice));
    select(&borrowed)
}

fn select<K: Clone + Eq + Hash>(paths: &[&[K]]) -> Selection<K> {
    let mut order: Vec<&K> = Vec::new();
    let mut groups: HashMap<&K, Vec<&[K]>> = HashMap::new();
    for path in paths {
        let Some((head, rest)) = path.split_first() else {
            continue;
        };
        groups
            .entry(head)
            .or_insert_with(|| {
                order.push(head);
                Vec::new()
            })
            .push(rest);
    }
    order
        .into_iter()
        .map(|head| {
            let rests = &groups[head];
            let chosen = if rests.iter().any(|rest| rest.is_empty()) {
                Chosen::All
            } else {
                Chosen::Some(select(rests))
            };
            (head.clone(), chosen)
        })
        .collect()
}
