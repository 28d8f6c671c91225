//! Orders are permutations, uniform, and the same for ever.

use proptest::prelude::*;
use tensordict_core::permutation::{BlockPermutation, Permutation, RowOrder};

fn rows(order: &RowOrder, start: u64, count: u64) -> Vec<u64> {
    let mut found = Vec::new();
    order.each(start, count, |row| found.push(row));
    found
}

fn shuffled(length: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let order = Permutation::new(length, &[seed, epoch]);
    rows(&RowOrder::Shuffled(order), 0, length)
}

fn in_blocks(length: u64, block: u64, seed: u64) -> Vec<u64> {
    let order = BlockPermutation::new(length, block, &[seed, 0]);
    rows(&RowOrder::Blocks(order), 0, length)
}

fn is_permutation(rows: &[u64]) -> bool {
    let mut sorted = rows.to_vec();
    sorted.sort_unstable();
    sorted.into_iter().eq(0..rows.len() as u64)
}

proptest! {
    #[test]
    fn test_every_number_comes_once(length in 0_u64..3000, seed: u64, epoch: u64) {
        prop_assert!(is_permutation(&shuffled(length, seed, epoch)));
    }

    #[test]
    fn test_a_position_is_found_again(length in 1_u64..=u64::MAX >> 1, seed: u64, part: u64) {
        let order = Permutation::new(length, &[seed]);
        let position = part % length;
        let value = order.at(position);
        prop_assert!(value < length);
        prop_assert_eq!(order.position_of(value), position);
    }

    #[test]
    fn test_blocks_stay_together(length in 1_u64..2000, block in 1_u64..100, seed: u64) {
        let found = in_blocks(length, block, seed);
        prop_assert!(is_permutation(&found));
        let changes = found.windows(2).filter(|pair| pair[0] / block != pair[1] / block);
        prop_assert_eq!(changes.count() as u64 + 1, length.div_ceil(block));
    }

    #[test]
    fn test_parts_are_those_of_the_whole(
        length in 1_u64..500, block in 1_u64..50, start in 0_u64..1000, count in 0_u64..1200
    ) {
        let orders = [
            RowOrder::InTurn(length),
            RowOrder::Shuffled(Permutation::new(length, &[3])),
            RowOrder::Blocks(BlockPermutation::new(length, block, &[3])),
        ];
        for order in orders {
            let whole = rows(&order, 0, length);
            let expected: Vec<u64> = (start..start + count)
                .map(|position| whole[usize::try_from(position % length).unwrap()])
                .collect();
            prop_assert_eq!(rows(&order, start, count), expected);
        }
    }
}

/// The distance of counts from equal ones, in standard deviations of the chi-square distribution.
fn deviation(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().copied().map(f64::from).sum();
    let length = f64::from(u32::try_from(counts.len()).unwrap());
    let expected = total / length;
    let chi_square: f64 = counts
        .iter()
        .map(|&count| (f64::from(count) - expected).powi(2) / expected)
        .sum();
    let freedom = length - 1.0;
    (chi_square - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn test_numbers_are_everywhere_equally_often() {
    for length in [2_usize, 3, 5, 8, 9, 16, 31, 100] {
        let mut counts = vec![0; length * length];
        for seed in 0..40_000 {
            for (position, &row) in shuffled(length as u64, seed, 1).iter().enumerate() {
                counts[position * length + usize::try_from(row).unwrap()] += 1;
            }
        }
        assert!(
            deviation(&counts).abs() < 4.5,
            "{length}: {}",
            deviation(&counts)
        );
    }
}

#[test]
fn test_neighbours_are_all_pairs_equally_often() {
    for length in [3_usize, 4, 7, 9, 12, 25, 40] {
        let mut counts = vec![0; length * length];
        for epoch in 0..60_000 {
            let order = shuffled(length as u64, 0, epoch);
            let at = usize::try_from(epoch).unwrap() % (length - 1);
            let pair = [order[at], order[at + 1]].map(|row| usize::try_from(row).unwrap());
            counts[pair[0] * length + pair[1]] += 1;
        }
        let counts: Vec<u32> = (0..length * length)
            .filter(|at| at / length != at % length)
            .map(|at| counts[at])
            .collect();
        assert!(
            deviation(&counts).abs() < 4.5,
            "{length}: {}",
            deviation(&counts)
        );
    }
}

#[test]
fn test_orders_of_four_come_all_equally_often() {
    let mut counts = std::collections::BTreeMap::<Vec<u64>, u32>::new();
    for seed in 0..60_000 {
        *counts.entry(shuffled(4, seed, 0)).or_default() += 1;
    }
    let counts: Vec<u32> = counts.into_values().collect();
    assert_eq!(counts.len(), 24);
    assert!(deviation(&counts).abs() < 4.5, "{}", deviation(&counts));
}

#[test]
fn test_large_orders_are_not_sorted_anywhere() {
    let length = 1_000_000_000;
    let order = Permutation::new(length, &[5, 0]);
    let mut counts = [0; 64];
    let mut rises = 0;
    let found: Vec<u64> = (0..100_000).map(|position| order.at(position)).collect();
    for pair in found.windows(2) {
        counts[usize::try_from(pair[0] * 64 / length).unwrap()] += 1;
        rises += i32::from(pair[1] > pair[0]);
    }
    assert!(deviation(&counts).abs() < 4.5);
    assert!((rises - 50_000).abs() < 500);
}

/// States that were saved years ago depend on these numbers.
#[test]
fn test_orders_never_change() {
    assert_eq!(shuffled(10, 0, 0), VECTOR_10);
    let large = Permutation::new(1_000_000_000_000, &[42, 7]);
    let found: Vec<u64> = (0..4).map(|position| large.at(position)).collect();
    assert_eq!(found, VECTOR_LARGE);
    assert_eq!(in_blocks(11, 4, 1), VECTOR_BLOCKS);
}

const VECTOR_10: [u64; 10] = [0, 7, 2, 5, 9, 3, 6, 1, 4, 8];
const VECTOR_LARGE: [u64; 4] = [
    473_426_901_362,
    414_927_256_366,
    550_215_437_220,
    496_773_090_060,
];
const VECTOR_BLOCKS: [u64; 11] = [9, 10, 8, 5, 6, 7, 4, 0, 1, 3, 2];
