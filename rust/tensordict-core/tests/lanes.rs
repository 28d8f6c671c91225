//! Laws of lanes: each stream whole, once, and the same plan however the reports arrive.

use proptest::prelude::*;
use tensordict_core::lanes::{Lanes, LanesState, shuffled};

/// The reads of each row at each step: the stream and the number of the item.
type Grid = Vec<Vec<Option<(usize, i64)>>>;

/// Runs a plan whose reader finds out the lengths. `hurry` says how many steps a row may
/// read ahead of the others.
fn run(mut lanes: Lanes, lengths: &[i64], hurry: &[i64]) -> Grid {
    let mut reading: Vec<Option<(usize, i64, i64)>> = vec![None; hurry.len()];
    let mut grid = Grid::new();
    let mut step = lanes.state(0).step;
    loop {
        for turn in lanes.settle(i64::MAX) {
            let seat = turn.stream.map(|stream| (stream, turn.num_read, turn.step));
            reading[turn.row] = seat;
        }
        for (row, seat) in reading.iter_mut().enumerate() {
            let Some((stream, num_read, at)) = *seat else {
                continue;
            };
            let until = (at + lengths[stream] - num_read).min(step + 1 + hurry[row]);
            lanes.advance(row, until);
            if until - at + num_read >= lengths[stream] && until < step + 1 + hurry[row] {
                lanes.end(row, until, true);
                *seat = None;
            } else if until > at {
                *seat = Some((stream, num_read + until - at, until));
            }
        }
        if lanes.num_steps() == Some(step) {
            return grid;
        }
        if lanes.is_settled(step) && reading_is_decided(&mut lanes, &mut reading) {
            let seats = lanes.seats(step);
            grid.push(
                seats
                    .iter()
                    .map(|seat| seat.map(|seat| (lanes.stream(seat.position), step - seat.start)))
                    .collect(),
            );
            step += 1;
        }
    }
}

/// Takes the turns that follow, and says whether there was none.
fn reading_is_decided(lanes: &mut Lanes, reading: &mut [Option<(usize, i64, i64)>]) -> bool {
    let turns = lanes.settle(i64::MAX);
    for turn in &turns {
        reading[turn.row] = turn.stream.map(|stream| (stream, turn.num_read, turn.step));
    }
    turns.is_empty()
}

/// The plan as a reader without hurry finds it, and as the lengths alone give it.
fn plan(lengths: &[i64], num_rows: usize, repeats: bool) -> Grid {
    let order: Vec<usize> = (0..lengths.len()).collect();
    let mut lanes = Lanes::new(order, num_rows, repeats, Some(lengths.to_vec()));
    lanes.settle(i64::MAX);
    let num_steps = lanes.num_steps().expect("the lengths decide everything");
    (0..num_steps)
        .map(|step| {
            lanes
                .seats(step)
                .iter()
                .map(|seat| seat.map(|seat| (seat.position, step - seat.start)))
                .collect()
        })
        .collect()
}

fn streams() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(prop_oneof![0_i64..4, 0_i64..12], 0..12)
}

proptest! {
    #[test]
    fn test_each_stream_is_whole_in_one_row_once(lengths in streams(), num_rows in 1_usize..6) {
        let grid = plan(&lengths, num_rows, false);
        let mut seen = vec![Vec::new(); lengths.len()];
        for (step, rows) in grid.iter().enumerate() {
            for (row, seat) in rows.iter().enumerate() {
                if let Some((stream, item)) = *seat {
                    seen[stream].push((row, step, item));
                }
            }
        }
        for (stream, items) in seen.iter().enumerate() {
            prop_assert_eq!(items.len(), usize::try_from(lengths[stream]).unwrap());
            for (number, &(row, step, item)) in items.iter().enumerate() {
                prop_assert_eq!((row, step), (items[0].0, items[0].1 + number));
                prop_assert_eq!(item, i64::try_from(number).unwrap());
            }
        }
    }

    #[test]
    fn test_readers_find_the_plan_of_the_lengths(
        lengths in streams(),
        hurry in prop::collection::vec(0_i64..5, 1..6),
        repeats in any::<bool>(),
    ) {
        let order = (0..lengths.len()).collect();
        let lanes = Lanes::new(order, hurry.len(), repeats, None);
        let grid = run(lanes, &lengths, &hurry);
        prop_assert_eq!(grid, plan(&lengths, hurry.len(), repeats));
    }

    #[test]
    fn test_rows_are_free_only_when_nothing_is_left(lengths in streams(), num_rows in 1_usize..6) {
        let grid = plan(&lengths, num_rows, false);
        for pair in grid.windows(2) {
            for (before, after) in pair[0].iter().zip(&pair[1]) {
                prop_assert!(before.is_some() || after.is_none());
            }
        }
        if lengths.iter().any(|&length| length > 0) {
            let full = plan(&lengths, num_rows, true);
            prop_assert_eq!(full.len(), grid.len());
            prop_assert!(full.iter().flatten().all(Option::is_some));
        }
    }

    #[test]
    fn test_a_state_of_any_step_gives_the_rest(
        lengths in streams(), num_rows in 1_usize..5, repeats in any::<bool>(), knows in any::<bool>(),
    ) {
        let order: Vec<usize> = (0..lengths.len()).collect();
        let grid = plan(&lengths, num_rows, repeats);
        let mut lanes = Lanes::new(order.clone(), num_rows, repeats, Some(lengths.clone()));
        lanes.settle(i64::MAX);
        for step in 0..=grid.len() {
            let state = lanes.state(i64::try_from(step).unwrap());
            let known = knows.then(|| lengths.clone());
            let rest = Lanes::resume(order.clone(), repeats, known, state).unwrap();
            let rest = run_from(rest, &lengths, num_rows, step);
            prop_assert_eq!(&rest[..], &grid[step..]);
        }
    }

    #[test]
    fn test_an_order_has_each_number_once(length in 0_usize..50, seed in any::<u64>(), epoch in 0_u64..9) {
        let mut order = shuffled(length, seed, epoch);
        prop_assert_eq!(&order, &shuffled(length, seed, epoch));
        order.sort_unstable();
        prop_assert_eq!(order, (0..length).collect::<Vec<_>>());
    }
}

/// Runs the lanes from a step on, one step after the other.
fn run_from(mut lanes: Lanes, lengths: &[i64], num_rows: usize, step: usize) -> Grid {
    let mut reading: Vec<Option<(usize, i64)>> = vec![None; num_rows];
    let mut grid = Grid::new();
    let mut step = i64::try_from(step).unwrap();
    loop {
        let mut turns = lanes.settle(step);
        while !turns.is_empty() {
            // The last of several turns of a row counts.
            for turn in &turns {
                let num_read = turn.num_read + step - turn.step;
                reading[turn.row] = turn.stream.map(|stream| (stream, num_read));
            }
            for (row, seat) in reading.iter().enumerate() {
                if let Some((stream, num_read)) = *seat
                    && turns.iter().any(|turn| turn.row == row)
                    && num_read >= lengths[stream]
                {
                    lanes.end(row, step, true);
                }
            }
            // A row that did not end has an item for this step.
            lanes.advance_all(step + 1);
            turns = lanes.settle(step);
        }
        if lanes.num_steps() == Some(step) {
            return grid;
        }
        let seats = lanes.seats(step);
        grid.push(
            seats
                .iter()
                .map(|seat| seat.map(|seat| (seat.position, step - seat.start)))
                .collect(),
        );
        step += 1;
        for (row, seat) in reading.iter_mut().enumerate() {
            if let Some((stream, num_read)) = seat {
                *num_read += 1;
                if *num_read >= lengths[*stream] {
                    lanes.end(row, step, true);
                }
            }
        }
        lanes.advance_all(step + 1);
    }
}

#[test]
fn test_a_state_of_other_streams_is_refused() {
    let state = LanesState {
        step: 3,
        seats: vec![None],
        num_taken: 7,
        cursor: 0,
        unfit: Vec::new(),
    };
    assert!(Lanes::resume(vec![0, 1], false, None, state).is_none());
}
