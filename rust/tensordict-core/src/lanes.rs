//! Lanes: which stream follows in which row of a batch, by arithmetic and not by timing.
//!
//! Each row reads one stream, an item a step. A row whose stream has no item for a step is
//! free at that step and takes the next stream of the order; rows that are free at the same
//! step take theirs in the order of the rows. A stream that turns out to have no item frees
//! its row again: that is another round of the same step. So the plan follows from the
//! order and the lengths of the streams alone, whoever reads them and however fast.
//!
//! Lengths may be unknown: readers report how far they came, [`Lanes::advance`] and
//! [`Lanes::end`], and [`Lanes::settle`] decides as much as follows from the reports.

use std::collections::VecDeque;

/// A stream in a row: what the row reads, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The position of the stream in the order.
    pub position: usize,
    /// True if the stream is read again, to fill a row that has nothing else to read.
    pub is_repeat: bool,
    /// The step at which the row had, or has, the first item of the stream.
    pub start: i64,
}

/// The instruction that a row follows from a step on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The row.
    pub row: usize,
    /// The stream to read, or None where there is nothing left for this row.
    pub stream: Option<usize>,
    /// The step for which the next item is read.
    pub step: i64,
    /// The number of items of the stream that were read before that step.
    pub num_read: i64,
    /// The length of the stream, if it is known.
    pub length: Option<i64>,
}

/// All that decides how an epoch goes on from a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanesState {
    /// The step that comes next.
    pub step: i64,
    /// The stream that each row reads.
    pub seats: Vec<Option<Seat>>,
    /// The number of streams of the order that were taken for the first time.
    pub num_taken: usize,
    /// The position from which a stream to read again is looked for.
    pub cursor: usize,
    /// The positions of streams that are not read again: they are empty or failed.
    pub unfit: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    seat: Option<Seat>,
    /// The row has an item for each step before this one.
    known_until: i64,
    /// The step for which the row has no item.
    ended: Option<i64>,
    is_fit: bool,
}

#[derive(Debug, Clone)]
struct Snapshot {
    step: i64,
    seats: Vec<Option<Seat>>,
    num_taken: usize,
    cursor: usize,
    num_unfit: usize,
}

/// The plan of one epoch, as far as it is decided.
#[derive(Debug, Clone)]
pub struct Lanes {
    order: Vec<usize>,
    lengths: Option<Vec<i64>>,
    repeats: bool,
    rows: Vec<Row>,
    num_taken: usize,
    cursor: usize,
    unfit: Vec<usize>,
    is_unfit: Vec<bool>,
    num_steps: Option<i64>,
    history: VecDeque<Snapshot>,
    resumed: Vec<Turn>,
}

impl Lanes {
    /// The plan of an epoch that begins.
    ///
    /// `order` has the streams in the order in which they are taken. With `repeats`, rows
    /// for which no stream is left read the streams once more until the epoch ends.
    /// `lengths` has the number of items of each stream, by its number in `order`.
    #[must_use]
    pub fn new(
        order: Vec<usize>,
        num_rows: usize,
        repeats: bool,
        lengths: Option<Vec<i64>>,
    ) -> Self {
        let free = Row {
            seat: None,
            known_until: 0,
            ended: Some(0),
            is_fit: true,
        };
        let is_unfit = vec![false; order.len()];
        let mut lanes = Self {
            order,
            lengths,
            repeats,
            rows: vec![free; num_rows],
            num_taken: 0,
            cursor: 0,
            unfit: Vec::new(),
            is_unfit,
            num_steps: None,
            history: VecDeque::new(),
            resumed: Vec::new(),
        };
        lanes.remember(-1);
        lanes
    }

    /// The plan of an epoch that goes on where `state` was taken, or None where the state
    /// is not one of this order.
    #[must_use]
    pub fn resume(
        order: Vec<usize>,
        repeats: bool,
        lengths: Option<Vec<i64>>,
        state: LanesState,
    ) -> Option<Self> {
        let num_streams = order.len();
        let mut positions = state
            .seats
            .iter()
            .flatten()
            .map(|seat| seat.position)
            .chain(state.unfit.iter().copied());
        let starts_early = |seat: &Seat| seat.start <= state.step;
        if positions.any(|position| position >= num_streams)
            || state.num_taken > num_streams
            || (state.cursor >= num_streams && state.cursor > 0)
            || !state.seats.iter().flatten().all(starts_early)
        {
            return None;
        }
        let mut lanes = Self::new(order, state.seats.len(), repeats, lengths);
        lanes.num_taken = state.num_taken;
        lanes.cursor = state.cursor;
        for position in state.unfit {
            lanes.exclude(position);
        }
        // A state of the very beginning has no rows that wait for good.
        let has_begun = state.num_taken > 0;
        for (number, seat) in state.seats.into_iter().enumerate() {
            if seat.is_none() && !has_begun {
                continue;
            }
            lanes.rows[number] = Row {
                seat,
                known_until: state.step,
                ended: None,
                is_fit: true,
            };
            if let Some(seat) = seat {
                lanes.seat(number, seat, state.step);
            }
            let turn = lanes.turn(number, state.step);
            lanes.resumed.push(turn);
        }
        if has_begun && lanes.rows.iter().all(|row| row.seat.is_none()) {
            lanes.num_steps = Some(state.step);
        }
        lanes.history.clear();
        lanes.remember(state.step - 1);
        Some(lanes)
    }

    /// Reports that the stream of `row` has an item for each step before `until`.
    pub fn advance(&mut self, row: usize, until: i64) {
        let row = &mut self.rows[row];
        row.known_until = row.known_until.max(until);
    }

    /// Reports that every stream that has not ended has an item for each step before `until`.
    pub fn advance_all(&mut self, until: i64) {
        for row in &mut self.rows {
            if row.ended.is_none() {
                row.known_until = row.known_until.max(until);
            }
        }
    }

    /// Reports that the stream of `row` has no item for `step`. One that failed is not `is_fit`
    /// to be read again.
    pub fn end(&mut self, row: usize, step: i64, is_fit: bool) {
        let row = &mut self.rows[row];
        row.known_until = row.known_until.max(step);
        row.ended = Some(step);
        row.is_fit = is_fit;
    }

    /// Decides what follows from the reports, up to and with the step `limit`, and says what
    /// the rows do now.
    pub fn settle(&mut self, limit: i64) -> Vec<Turn> {
        let mut turns = std::mem::take(&mut self.resumed);
        while let Some(step) = self.next_event() {
            if step > limit {
                break;
            }
            self.settle_round(step, &mut turns);
        }
        turns
    }

    /// The step at which rows become free next, if what the others do until then is known.
    fn next_event(&self) -> Option<i64> {
        if self.num_steps.is_some() {
            return None;
        }
        let step = self.rows.iter().filter_map(|row| row.ended).min()?;
        let is_known =
            |row: &Row| row.seat.is_none() || row.ended.is_some() || row.known_until > step;
        self.rows.iter().all(is_known).then_some(step)
    }

    /// One round of a step: all rows that are free at it take what is next.
    fn settle_round(&mut self, step: i64, turns: &mut Vec<Turn>) {
        let free: Vec<usize> = (0..self.rows.len())
            .filter(|&row| self.rows[row].ended == Some(step))
            .collect();
        for &number in &free {
            let row = self.rows[number];
            if let Some(seat) = row.seat
                && (seat.start == step || !row.is_fit)
            {
                self.exclude(seat.position);
            }
            self.rows[number] = Row {
                seat: None,
                known_until: step,
                ended: None,
                is_fit: true,
            };
        }
        let is_first_read = |row: &Row| row.seat.is_some_and(|seat| !seat.is_repeat);
        if self.num_taken == self.order.len() && !self.rows.iter().any(is_first_read) {
            self.num_steps = Some(step);
            for row in &mut self.rows {
                row.seat = None;
            }
        } else {
            for &number in &free {
                if let Some(seat) = self.take(step) {
                    self.seat(number, seat, step);
                }
            }
        }
        for &number in &free {
            if self.rows[number].ended != Some(step) {
                turns.push(self.turn(number, step));
            }
        }
        self.remember(step);
    }

    fn take(&mut self, start: i64) -> Option<Seat> {
        if self.num_taken < self.order.len() {
            self.num_taken += 1;
            return Some(Seat {
                position: self.num_taken - 1,
                is_repeat: false,
                start,
            });
        }
        let num_streams = self.order.len();
        if !self.repeats || self.unfit.len() == num_streams {
            return None;
        }
        while self.is_unfit[self.cursor] {
            self.cursor = (self.cursor + 1) % num_streams;
        }
        let position = self.cursor;
        self.cursor = (self.cursor + 1) % num_streams;
        Some(Seat {
            position,
            is_repeat: true,
            start,
        })
    }

    /// Puts a stream in a row. Where its length is known, so is where it ends.
    fn seat(&mut self, number: usize, seat: Seat, step: i64) {
        let length = self.length(seat.position);
        self.rows[number] = Row {
            seat: Some(seat),
            known_until: length.map_or(step, |length| seat.start.saturating_add(length)),
            ended: length.map(|length| seat.start.saturating_add(length).max(step)),
            is_fit: true,
        };
    }

    fn length(&self, position: usize) -> Option<i64> {
        let lengths = self.lengths.as_ref()?;
        lengths.get(self.order[position]).copied()
    }

    fn turn(&self, number: usize, step: i64) -> Turn {
        let seat = self.rows[number].seat;
        Turn {
            row: number,
            stream: seat.map(|seat| self.order[seat.position]),
            step,
            num_read: seat.map_or(0, |seat| step - seat.start),
            length: seat.and_then(|seat| self.length(seat.position)),
        }
    }

    fn exclude(&mut self, position: usize) {
        if !self.is_unfit[position] {
            self.is_unfit[position] = true;
            self.unfit.push(position);
        }
    }

    fn remember(&mut self, step: i64) {
        if self.history.back().is_some_and(|last| last.step == step) {
            self.history.pop_back();
        }
        self.history.push_back(Snapshot {
            step,
            seats: self.rows.iter().map(|row| row.seat).collect(),
            num_taken: self.num_taken,
            cursor: self.cursor,
            num_unfit: self.unfit.len(),
        });
    }

    /// Returns the number of steps of the epoch, once that is known.
    #[must_use]
    pub fn num_steps(&self) -> Option<i64> {
        self.num_steps
    }

    /// The stream at a position of the order.
    #[must_use]
    pub fn stream(&self, position: usize) -> usize {
        self.order[position]
    }

    /// Returns whether it is decided what each row has for `step`.
    #[must_use]
    pub fn is_settled(&self, step: i64) -> bool {
        match self.num_steps {
            Some(num_steps) => step < num_steps,
            None => self
                .rows
                .iter()
                .all(|row| row.known_until > step || (row.seat.is_none() && row.ended.is_none())),
        }
    }

    /// Returns what each row reads at a step that is settled.
    #[must_use]
    pub fn seats(&self, step: i64) -> &[Option<Seat>] {
        let is_before = |snapshot: &&Snapshot| snapshot.step <= step;
        match self.history.iter().rev().find(is_before) {
            Some(snapshot) => &snapshot.seats,
            None => &[],
        }
    }

    /// The step at which the rows last changed, at or before `step`.
    #[must_use]
    pub fn changed_at(&self, step: i64) -> i64 {
        let is_before = |snapshot: &&Snapshot| snapshot.step <= step;
        let snapshot = self.history.iter().rev().find(is_before);
        snapshot.map_or(-1, |snapshot| snapshot.step)
    }

    /// Forgets what is not needed for `step` and later ones, nor for the state before it.
    pub fn forget_before(&mut self, step: i64) {
        while self.history.len() > 1 && self.history[1].step < step {
            self.history.pop_front();
        }
    }

    /// Returns the state from which the epoch goes on at `step`, after all steps before it.
    #[must_use]
    pub fn state(&self, step: i64) -> LanesState {
        let is_before = |snapshot: &&Snapshot| snapshot.step < step;
        let snapshot = self.history.iter().rev().find(is_before);
        LanesState {
            step,
            seats: snapshot.map_or_else(Vec::new, |snapshot| snapshot.seats.clone()),
            num_taken: snapshot.map_or(0, |snapshot| snapshot.num_taken),
            cursor: snapshot.map_or(0, |snapshot| snapshot.cursor),
            unfit: snapshot.map_or_else(Vec::new, |snapshot| {
                self.unfit[..snapshot.num_unfit].to_vec()
            }),
        }
    }
}

/// The numbers below `length` in an order that follows from the seed and the epoch.
#[must_use]
pub fn shuffled(length: usize, seed: u64, epoch: u64) -> Vec<usize> {
    // SplitMix64: a few lines that give the same numbers on every machine.
    let mut state = seed ^ epoch.wrapping_mul(0xD1B5_4A32_D192_ED03).rotate_left(17);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    let mut order: Vec<usize> = (0..length).collect();
    for last in (1..length).rev() {
        // The high half of the product is a number below `last + 1`.
        let bound = last as u128 + 1;
        let chosen = (u128::from(next()) * bound) >> 64;
        order.swap(last, usize::try_from(chosen).unwrap_or(last));
    }
    order
}
