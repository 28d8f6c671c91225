//! Laws of nested keys and of the plans that regroup entries.

use proptest::prelude::*;
use tensordict_core::Refused;
use tensordict_core::keys::{Branch, Node, Path, group_by_head, joined, unflatten_plan};

proptest! {
    #[test]
    fn test_unflatten_undoes_flatten(
        paths in prop::collection::vec(prop::collection::vec("[ab]{1,2}", 1..4), 0..6)
    ) {
        let paths: Vec<Path> = paths.into_iter().map(Path::from_vec).collect();
        let names: Vec<String> = paths.iter().map(|path| flat_name(path)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let Ok(tree) = unflatten_plan(&names, ".") else {
            return Ok(());
        };
        let mut found = Vec::new();
        collect(&tree, &mut Path::new(), &mut found);
        found.sort();
        let mut expected: Vec<_> = paths.into_iter().enumerate().collect();
        expected.sort();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn test_groups_hold_every_path_once_and_in_order(
        paths in prop::collection::vec(prop::collection::vec(0_u8..3, 1..4), 0..8)
    ) {
        let slices: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
        let groups = group_by_head(&slices);
        for (head, rests) in &groups {
            let expected: Vec<&[u8]> = slices
                .iter()
                .filter(|path| path[0] == **head)
                .map(|path| &path[1..])
                .collect();
            prop_assert_eq!(rests.to_vec(), expected);
        }
        let total: usize = groups.iter().map(|(_, rests)| rests.len()).sum();
        prop_assert_eq!(total, paths.len());
    }
}

fn flat_name(path: &[String]) -> String {
    let (first, rest) = path.split_first().unwrap();
    rest.iter().fold(first.clone(), |name, part| {
        joined(Some(&name), ".", part).into_owned()
    })
}

fn collect(branch: &Branch<'_>, prefix: &mut Path, found: &mut Vec<(usize, Path)>) {
    for (key, node) in &branch.entries {
        prefix.push((*key).to_owned());
        match node {
            Node::Entry(position) => found.push((*position, prefix.clone())),
            Node::Branch(inner) => collect(inner, prefix, found),
        }
        prefix.pop();
    }
}

#[test]
fn test_unflatten_refuses_a_name_through_an_entry() {
    assert_eq!(unflatten_plan(&["a", "a.b"], "."), Err(Refused));
    assert_eq!(unflatten_plan(&["a.b", "a"], "."), Err(Refused));
}

#[test]
fn test_unflatten_puts_collections_where_their_first_entry_stood() {
    let tree = unflatten_plan(&["x.a", "y", "x.b"], ".").unwrap();
    let keys: Vec<_> = tree.entries.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, ["x", "y"]);
}

#[test]
fn test_an_empty_separator_splits_nothing() {
    let tree = unflatten_plan(&["ab"], "").unwrap();
    assert_eq!(tree.entries, [("ab", Node::Entry(0))]);
}
