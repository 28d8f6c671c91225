//! Laws of batch sizes.

use proptest::prelude::*;
use tensordict_core::Refused;
use tensordict_core::batch::{infer_view, num_elements};

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
}

#[test]
fn test_a_view_of_another_size_is_refused() {
    assert_eq!(infer_view(&[2, 3], &[4, -1]), Err(Refused));
    assert_eq!(infer_view(&[2, 3], &[5]), Err(Refused));
    assert_eq!(infer_view(&[2, 3], &[-2, -3]), Err(Refused));
    assert_eq!(infer_view(&[2, 3], &[-1, -1]), Err(Refused));
}

#[test]
fn test_no_dim_can_be_inferred_beside_one_of_size_0() {
    assert_eq!(infer_view(&[0, 3], &[0, -1]), Err(Refused));
    assert_eq!(infer_view(&[0, 3], &[-1, 3]).unwrap().into_vec(), [0, 3]);
}

#[test]
fn test_a_batch_too_large_to_count_is_refused() {
    assert_eq!(num_elements(&[i64::MAX, 2]), None);
    assert!(infer_view(&[i64::MAX, 2], &[-1]).is_err());
}
