//! Laws of index plans, and the rules of `NumPy` and torch by example.

use proptest::prelude::*;
use smallvec::smallvec;
use tensordict_core::Refused;
use tensordict_core::index::{Item, Plan, Range, Step, plan};

const ALL: Item = Item::Slice(Range::WHOLE);

fn positions(shape: &[i64]) -> Item {
    Item::Positions(shape.into())
}

fn mask(shape: &[i64], count: i64) -> Item {
    Item::Mask {
        shape: shape.into(),
        count,
    }
}

fn size(batch_size: &[i64], items: &[Item]) -> Vec<i64> {
    plan(batch_size, items).unwrap().size.into_vec()
}

fn range() -> impl Strategy<Value = Range> {
    let bound = || prop::option::of(-9_i64..9);
    (bound(), bound(), prop::option::of(1_i64..4)).prop_map(|(start, stop, step)| Range {
        start,
        stop,
        step,
    })
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        Just(Item::Ellipsis),
        Just(Item::NewDim),
        any::<bool>().prop_map(Item::Bool),
        (-2_i64..2).prop_map(Item::Position),
        range().prop_map(Item::Slice),
        prop::collection::vec(1_i64..3, 1..3).prop_map(|shape| positions(&shape)),
        Just(mask(&[2], 1)),
        Just(mask(&[2, 3], 4)),
    ]
}

proptest! {
    #[test]
    fn test_a_range_takes_what_counting_takes(range in range(), length in 0_i64..7) {
        let at = |bound: i64| if bound < 0 { (bound + length).max(0) } else { bound }.min(length);
        let (start, stop) = (at(range.start.unwrap_or(0)), at(range.stop.unwrap_or(length)));
        let step = usize::try_from(range.step.unwrap_or(1)).unwrap();
        let counted = (start..stop).step_by(step).count();
        prop_assert_eq!(range.len(length).unwrap(), i64::try_from(counted).unwrap());
    }

    #[test]
    fn test_a_plan_names_a_source_for_each_dim(items in prop::collection::vec(item(), 0..5)) {
        let batch_size = [2, 3, 2];
        if let Ok(Plan { size, sources, .. }) = plan(&batch_size, &items) {
            prop_assert_eq!(size.len(), sources.len());
            for source in sources.iter().flatten() {
                prop_assert!(*source < batch_size.len());
            }
        }
    }

    #[test]
    fn test_a_trailing_ellipsis_says_nothing(items in prop::collection::vec(item(), 0..4)) {
        prop_assume!(!items.contains(&Item::Ellipsis));
        let mut longer = items.clone();
        longer.push(Item::Ellipsis);
        prop_assert_eq!(plan(&[2, 3, 2], &items).ok(), plan(&[2, 3, 2], &longer).ok());
    }

    #[test]
    fn test_further_dims_stay_as_they_are(items in prop::collection::vec(item(), 0..4), further in 1_i64..5) {
        // An index without ellipsis does the same to a batch and to every leaf of it.
        prop_assume!(!items.contains(&Item::Ellipsis));
        if let Ok(shorter) = plan(&[2, 3, 2], &items) {
            let mut expected = shorter.size.to_vec();
            expected.push(further);
            prop_assert_eq!(size(&[2, 3, 2, further], &items), expected);
        }
    }
}

#[test]
fn test_positions_drop_and_new_dims_add() {
    assert_eq!(size(&[4, 3, 2], &[Item::Position(-1)]), [3, 2]);
    assert_eq!(size(&[4, 3], &[Item::NewDim, Item::Position(0)]), [1, 3]);
    assert_eq!(size(&[4], &[Item::Bool(true)]), [1, 4]);
    assert_eq!(size(&[4], &[Item::Bool(false)]), [0, 4]);
}

#[test]
fn test_adjacent_tensors_stay_in_place_and_others_lead() {
    let pair = positions(&[5]);
    assert_eq!(size(&[4, 3, 2], &[ALL, pair.clone(), pair.clone()]), [4, 5]);
    assert_eq!(size(&[4, 3, 2], &[pair.clone(), ALL, pair.clone()]), [5, 3]);
    assert_eq!(
        size(&[4, 3, 2], &[ALL, pair.clone(), Item::NewDim, pair]),
        [5, 4, 1]
    );
}

#[test]
fn test_a_number_between_tensors_does_not_part_them() {
    let items = [positions(&[5]), Item::Position(0), positions(&[5])];
    assert_eq!(size(&[4, 3, 2], &items), [5]);
}

#[test]
fn test_index_tensors_broadcast() {
    let items = [positions(&[5, 1]), positions(&[6])];
    assert_eq!(size(&[4, 3, 2], &items), [5, 6, 2]);
    let clash = [positions(&[5]), positions(&[6])];
    assert!(matches!(plan(&[4, 3], &clash), Err(Refused)));
}

#[test]
fn test_a_mask_takes_its_dims_for_one() {
    let found = plan(&[4, 3, 2], &[mask(&[4, 3], 7)]).unwrap();
    assert_eq!(found.size.to_vec(), [7, 2]);
    let expected: [Step; 2] = [0, 1].map(|axis| Step::MaskAxis { item: 0, axis });
    assert_eq!(found.steps.to_vec(), expected);
    assert!(matches!(plan(&[4, 3], &[mask(&[4, 2], 1)]), Err(Refused)));
}

#[test]
fn test_an_ellipsis_becomes_slices_of_the_batch_dims_alone() {
    let found = plan(&[4, 3, 2], &[Item::Ellipsis, Item::Position(0)]).unwrap();
    assert_eq!(
        found.steps.to_vec(),
        [Step::Whole, Step::Whole, Step::Item(1)]
    );
    assert_eq!(found.size.to_vec(), [4, 3]);
}

#[test]
fn test_what_takes_everything_is_whole() {
    for items in [
        vec![],
        vec![Item::Ellipsis],
        vec![ALL],
        vec![Item::Ellipsis, ALL],
    ] {
        assert!(plan(&[4, 3], &items).unwrap().is_whole, "{items:?}");
    }
    let from_0 = Range {
        start: Some(0),
        ..Range::WHOLE
    };
    assert!(!plan(&[4, 3], &[Item::Slice(from_0)]).unwrap().is_whole);
}

#[test]
fn test_names_follow_their_dims() {
    let sources = |items: &[Item]| plan(&[4, 3, 2], items).unwrap().sources.to_vec();
    assert_eq!(sources(&[Item::Position(0)]), [Some(1), Some(2)]);
    assert_eq!(
        sources(&[ALL, Item::NewDim]),
        [Some(0), None, Some(1), Some(2)]
    );
    assert_eq!(sources(&[positions(&[5])]), [Some(0), Some(1), Some(2)]);
    assert_eq!(
        sources(&[positions(&[5]), positions(&[5])]),
        [None, Some(2)]
    );
    assert_eq!(
        sources(&[positions(&[5, 1]), positions(&[6])]),
        [Some(0), Some(1), Some(2)]
    );
}

#[test]
fn test_what_does_not_fit_is_refused() {
    let is_refused = |items: &[Item]| matches!(plan(&[4], items), Err(Refused));
    assert!(is_refused(&[Item::Position(4)]));
    assert!(is_refused(&[ALL, ALL]));
    assert!(is_refused(&[Item::Ellipsis, Item::Ellipsis]));
    let back = Range {
        step: Some(-1),
        ..Range::WHOLE
    };
    assert!(is_refused(&[Item::Slice(back)]));
    let item = Item::Mask {
        shape: smallvec![4, 4],
        count: 0,
    };
    assert!(is_refused(&[item]));
}
