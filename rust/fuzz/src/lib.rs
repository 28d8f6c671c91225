//! The bodies of the fuzz targets: see [`readers`].

mod readers;

pub use readers::*;
