//! Tensors of other devices, whose bytes come from Python piece by piece.

use std::io;
use std::ops::ControlFlow;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensordict_core::storage::source::Remote;

use super::leaves::required_memory;

/// The bytes of a tensor of another device: a `DeviceReader` of Python.
#[derive(Debug)]
pub(super) struct DeviceBytes {
    reader: Py<PyAny>,
    length: u64,
    /// The error that fetching the first bytes ended with.
    failed: Mutex<Option<PyErr>>,
}

impl DeviceBytes {
    pub(super) fn new(reader: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            length: reader.getattr("num_bytes")?.extract()?,
            reader: reader.clone().unbind(),
            failed: Mutex::new(None),
        })
    }
}

/// A tensor in memory, whose values nobody changes before the next piece is asked for.
struct Piece {
    tensor: Py<PyAny>,
    pointer: *const u8,
    length: usize,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the bytes are those of the tensor, which this holds.
        unsafe { std::slice::from_raw_parts(self.pointer, self.length) }
    }
}

fn next_piece(pieces: &Py<PyAny>) -> PyResult<Option<Piece>> {
    Python::attach(|py| {
        let tensor = pieces.bind(py).call_method0("next_piece")?;
        if tensor.is_none() {
            return Ok(None);
        }
        let memory = required_memory(&tensor)?;
        Ok(Some(Piece {
            tensor: tensor.unbind(),
            pointer: memory.pointer,
            length: memory.num_bytes,
        }))
    })
}

impl Remote for DeviceBytes {
    fn length(&self) -> u64 {
        self.length
    }

    fn begin(&self) {
        let begun = Python::attach(|py| self.reader.bind(py).call_method0("begin").map(drop));
        if let Err(error) = begun {
            *self.failed.lock() = Some(error);
        }
    }

    fn read(&self, take: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<()> {
        let failed = self.failed.lock().take();
        if let Some(error) = failed {
            return Err(io::Error::other(error));
        }
        let pieces = Python::attach(|py| self.reader.call_method0(py, "pieces"));
        let pieces = pieces.map_err(io::Error::other)?;
        while let Some(piece) = next_piece(&pieces).map_err(io::Error::other)? {
            let flow = take(piece.bytes());
            Python::attach(|_| drop(piece.tensor));
            if flow.is_break() {
                break;
            }
        }
        Python::attach(|_| drop(pieces));
        Ok(())
    }
}
