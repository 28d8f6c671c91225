//! What the fuzz targets do: see [`readers`].

mod readers;

pub use readers::*;
