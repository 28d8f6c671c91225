//! Laws of the shape of a lazy stack.

use proptest::prelude::*;
use tensordict_core::lazy::{MergedShape, RAGGED};

fn shapes() -> impl Strategy<Value = Vec<Vec<i64>>> {
    (0_usize..4)
        .prop_flat_map(|ndim| prop::collection::vec(prop::collection::vec(0_i64..3, ndim), 1..5))
}

fn merged(shapes: &[Vec<i64>]) -> MergedShape {
    let mut merged = MergedShape::of(&shapes[0]);
    for shape in &shapes[1..] {
        assert!(merged.add(shape));
    }
    merged
}

proptest! {
    #[test]
    fn test_a_dim_is_that_of_all_members_or_ragged(shapes in shapes(), dim in 0_usize..4) {
        let ndim = shapes[0].len();
        let dim = dim.min(ndim);
        let stacked = merged(&shapes).stacked(dim).unwrap();
        prop_assert_eq!(stacked[dim], i64::try_from(shapes.len()).unwrap());
        for at in 0..ndim {
            let found = stacked[at + usize::from(at >= dim)];
            let alike = shapes.iter().all(|shape| shape[at] == shapes[0][at]);
            prop_assert_eq!(found, if alike { shapes[0][at] } else { RAGGED });
        }
    }

    #[test]
    fn test_the_order_of_members_does_not_matter(shapes in shapes()) {
        let mut reversed = shapes.clone();
        reversed.reverse();
        prop_assert_eq!(merged(&shapes).stacked(0), merged(&reversed).stacked(0));
    }
}

#[test]
fn test_members_need_the_same_number_of_dims() {
    let mut merged = MergedShape::of(&[2]);
    assert!(!merged.add(&[2, 3]));
    merged.repeat();
    assert_eq!(merged.clone().stacked(1).unwrap().to_vec(), [2, 2]);
    assert_eq!(merged.stacked(2), None);
}
