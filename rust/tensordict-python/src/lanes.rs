//! The plan of a loader of streams, and the counters that its processes share.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyValueError};
use pyo3::prelude::*;
use tensordict_core::lanes::{self, Lanes, LanesState, Seat};

/// A seat as Python has it: position, whether it is a repeat, first step.
type SeatTuple = (usize, bool, i64);

/// A turn as Python has it: row, stream, step, number of items read, length.
type TurnTuple = (usize, Option<usize>, i64, i64, Option<i64>);

/// A state as Python has it: step, seats, number taken, cursor, unfit positions.
type StateTuple = (i64, Vec<Option<SeatTuple>>, usize, usize, Vec<usize>);

fn to_tuple(seat: &Seat) -> SeatTuple {
    (seat.position, seat.is_repeat, seat.start)
}

#[pyclass(frozen, name = "Lanes", module = "tensordict._rust")]
struct PyLanes(Mutex<Lanes>);

#[pymethods]
impl PyLanes {
    #[new]
    #[pyo3(signature = (order, num_rows, repeats, lengths=None, state=None))]
    fn new(
        order: Vec<usize>,
        num_rows: usize,
        repeats: bool,
        lengths: Option<Vec<i64>>,
        state: Option<StateTuple>,
    ) -> PyResult<Self> {
        let Some((step, seats, num_taken, cursor, unfit)) = state else {
            let lanes = Lanes::new(order, num_rows, repeats, lengths);
            return Ok(Self(Mutex::new(lanes)));
        };
        let seats = seats.into_iter().map(|seat| {
            seat.map(|(position, is_repeat, start)| Seat {
                position,
                is_repeat,
                start,
            })
        });
        let state = LanesState {
            step,
            seats: seats.collect(),
            num_taken,
            cursor,
            unfit,
        };
        if state.seats.len() != num_rows {
            return Err(PyValueError::new_err(format!(
                "the state is of {} rows, and there are {num_rows}",
                state.seats.len()
            )));
        }
        Lanes::resume(order, repeats, lengths, state)
            .map(|lanes| Self(Mutex::new(lanes)))
            .ok_or_else(|| PyValueError::new_err("the state is of other streams"))
    }

    fn advance(&self, row: usize, until: i64) {
        self.0.lock().advance(row, until);
    }

    fn advance_all(&self, until: i64) {
        self.0.lock().advance_all(until);
    }

    fn end(&self, row: usize, step: i64, is_fit: bool) {
        self.0.lock().end(row, step, is_fit);
    }

    fn settle(&self, limit: i64) -> Vec<TurnTuple> {
        let turns = self.0.lock().settle(limit);
        turns
            .into_iter()
            .map(|turn| (turn.row, turn.stream, turn.step, turn.num_read, turn.length))
            .collect()
    }

    #[getter]
    fn num_steps(&self) -> Option<i64> {
        self.0.lock().num_steps()
    }

    fn is_settled(&self, step: i64) -> bool {
        self.0.lock().is_settled(step)
    }

    /// The stream of each row, -1 for none; whether it is read for the first time; its start.
    fn seats(&self, step: i64) -> (Vec<i64>, Vec<bool>, Vec<i64>) {
        let lanes = self.0.lock();
        let seats = lanes.seats(step);
        let stream = |seat: &Seat| i64::try_from(lanes.stream(seat.position)).unwrap_or(i64::MAX);
        (
            seats
                .iter()
                .map(|seat| seat.as_ref().map_or(-1, stream))
                .collect(),
            seats
                .iter()
                .map(|seat| seat.is_some_and(|seat| !seat.is_repeat))
                .collect(),
            seats
                .iter()
                .map(|seat| seat.map_or(0, |seat| seat.start))
                .collect(),
        )
    }

    /// The step at which the rows last changed, at or before `step`.
    fn changed_at(&self, step: i64) -> i64 {
        self.0.lock().changed_at(step)
    }

    fn forget_before(&self, step: i64) {
        self.0.lock().forget_before(step);
    }

    fn state(&self, step: i64) -> StateTuple {
        let state = self.0.lock().state(step);
        (
            state.step,
            state
                .seats
                .iter()
                .map(|seat| seat.as_ref().map(to_tuple))
                .collect(),
            state.num_taken,
            state.cursor,
            state.unfit,
        )
    }
}

/// Numbers in memory that processes share, written and read in order.
#[pyclass(frozen, name = "SharedCounters", module = "tensordict._rust")]
struct SharedCounters(PyBuffer<i64>);

impl SharedCounters {
    fn at(&self, index: usize) -> PyResult<&AtomicI64> {
        if index >= self.0.item_count() {
            return Err(PyIndexError::new_err("no counter at this index"));
        }
        // SAFETY: the buffer is held, writable, contiguous and aligned, which `new` checks;
        // the index is within it. Every process goes through this type.
        Ok(unsafe { AtomicI64::from_ptr(self.0.buf_ptr().cast::<i64>().add(index)) })
    }
}

#[pymethods]
impl SharedCounters {
    #[new]
    fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<i64>::get(buffer)?;
        let is_aligned = buffer.buf_ptr().addr() % align_of::<AtomicI64>() == 0;
        if buffer.readonly() || !buffer.is_c_contiguous() || !is_aligned {
            return Err(PyBufferError::new_err(
                "counters need a buffer that is writable, contiguous and aligned",
            ));
        }
        Ok(Self(buffer))
    }

    /// Reads a counter, and everything that was written before it was set.
    fn get(&self, index: usize) -> PyResult<i64> {
        Ok(self.at(index)?.load(Ordering::SeqCst))
    }

    /// Sets a counter after everything that was written before.
    fn set(&self, index: usize, value: i64) -> PyResult<()> {
        self.at(index)?.store(value, Ordering::SeqCst);
        Ok(())
    }
}

#[pyfunction]
fn shuffled(length: usize, seed: u64, epoch: u64) -> Vec<usize> {
    lanes::shuffled(length, seed, epoch)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyLanes>()?;
    module.add_class::<SharedCounters>()?;
    module.add_function(wrap_pyfunction!(shuffled, module)?)
}
