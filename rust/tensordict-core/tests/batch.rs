//! Laws of batch sizes.

use proptest::prelude::*;
use tensordict_core::Error;
use tensordict_core::batch::{broadcast, common_leading_dims, infer_view, num_elements};

fn shape() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(0_i64..5, 0..4)
}

proptest! {
    #[test]
    fn test_a_view_has_as_many_elements(batch in shape(), asked in prop::collection::vec(-1_i64..7, 0..4)) {
        if let Ok(dims) = infer_view(&batch, &asked) {
            prop_assert_eq!(num_elements(&dims), num_elements(&batch));
            for (found, wanted) in dims.iter().zip(&asked) {
                prop_assert!(*wanted == -1 || found == wanted);
            }
        }
    }

    #[test]
    fn test_one_dim_of_a_batch_can_be_inferred(batch in prop::collection::vec(1_i64..5, 1..4), at in 0_usize..4) {
        let at = at % batch.len();
        let mut asked = batch.clone();
        asked[at] = -1;
        prop_assert_eq!(infer_view(&batch, &asked).unwrap().into_vec(), batch);
    }

    #[test]
    fn test_broadcast_is_symmetric(first in shape(), second in shape()) {
        let found = broadcast(&first, &second).ok();
        prop_assert_eq!(&found, &broadcast(&second, &first).ok());
        if let Some(dims) = found {
            prop_assert_eq!(&broadcast(&dims, &first).unwrap(), &dims);
            prop_assert_eq!(dims.len(), first.len().max(second.len()));
        }
    }

    #[test]
    fn test_broadcast_with_itself_or_nothing_changes_nothing(shape in shape()) {
        prop_assert_eq!(&broadcast(&shape, &shape).unwrap()[..], &shape[..]);
        prop_assert_eq!(broadcast(&shape, &[]).unwrap().into_vec(), shape);
    }

    #[test]
    fn test_common_dims_lead_every_shape_and_are_the_most(
        shapes in prop::collection::vec(shape(), 1..4),
        limit in prop::option::of(0_usize..4)
    ) {
        let common = common_leading_dims(shapes.iter().map(Vec::as_slice), limit).unwrap();
        prop_assert!(shapes.iter().all(|shape| shape.starts_with(&common)));
        prop_assert!(limit.is_none_or(|limit| common.len() <= limit));
        let may_grow = limit.is_none_or(|limit| common.len() < limit);
        if may_grow {
            let next: Vec<_> = shapes.iter().map(|shape| shape.get(common.len())).collect();
            prop_assert!(next.iter().any(|length| length.is_none() || *length != next[0]));
        }
    }
}

#[test]
fn test_a_view_of_another_size_is_refused() {
    assert!(matches!(
        infer_view(&[2, 3], &[4, -1]),
        Err(Error::ViewShape { .. })
    ));
    assert!(matches!(
        infer_view(&[2, 3], &[5]),
        Err(Error::ViewShape { .. })
    ));
    assert!(matches!(
        infer_view(&[2, 3], &[-2, -3]),
        Err(Error::ViewShape { .. })
    ));
    assert!(matches!(
        infer_view(&[2, 3], &[-1, -1]),
        Err(Error::TwoInferredDims)
    ));
}

#[test]
fn test_no_dim_can_be_inferred_beside_one_of_size_0() {
    assert!(matches!(
        infer_view(&[0, 3], &[0, -1]),
        Err(Error::ViewShape { .. })
    ));
    assert_eq!(infer_view(&[0, 3], &[-1, 3]).unwrap().into_vec(), [0, 3]);
}

#[test]
fn test_a_batch_too_large_to_count_is_refused() {
    assert_eq!(num_elements(&[i64::MAX, 2]), None);
    assert!(infer_view(&[i64::MAX, 2], &[-1]).is_err());
}

#[test]
fn test_nothing_has_no_common_dims() {
    assert_eq!(common_leading_dims([], None), None);
}
