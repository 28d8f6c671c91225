//! Checkpoints: directories that appear whole, also while the training that they are of goes on.
//!
//! A [`Step`] is a plan: files of tensors in the safetensors format, files whose bytes are known, and
//! files of an older step that are linked. [`save`] writes it to a work directory inside the folder of
//! the steps, which then becomes the step in one rename; only after that, and after it is durable, are
//! older steps deleted.
//!
//! To save in the background, [`Staging`] copies the bytes into memory of its own, in parallel; then a
//! thread that knows nothing of Python writes the step ([`Background`]).

mod background;
mod copying;
mod digest;
mod reading;
mod staging;
mod step;

pub use super::work::{
    has_ended as process_has_ended, is_running as process_is_running, process_name,
};
pub use background::{Background, Order};
pub use copying::{Copied, copy_tensors};
pub use digest::digests;
pub use reading::{Wanted, read_tensors};
pub use staging::{Memory, Staging};
pub use step::{Gathered, Part, Step, StepFile, remove, save};
