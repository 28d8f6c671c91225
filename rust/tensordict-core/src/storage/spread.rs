//! Choosing the place on a disk where many files are made.
//!
//! ext4 makes a file near its directory, and for each new one it passes over the inodes that were deleted
//! there in the last minutes, one by one: 8,192 at worst, which takes twenty times as long as making the
//! file. A save of many leaves over a save deletes as many files as it makes, so the next save meets them.
//! Directories at the top of a disk are spread over all of it instead, and those that are made in a
//! directory that says so. Such a place can be one where others deleted, too: a few files show it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::io::{Disk, is_ext4};

/// From how many files on it is worth looking for a place.
const MANY_FILES: usize = 256;

/// The most places that are looked at.
pub(crate) const MAX_PLACES: usize = 8;

/// The number of files that are made to look at a place.
const PROBES: usize = 4;

/// The least time that each of them takes in a slow place. Elsewhere it is 10 to 20 microseconds.
const SLOW: Duration = Duration::from_micros(60);

/// Asks that directories made in this one are spread over the disk, if it is for so many files. It is a hint.
pub(crate) fn spread(disk: Disk<'_>, directory: &Path, num_files: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
        if num_files >= MANY_FILES
            && let Ok(directory) = disk.open_directory(directory)
            && is_ext4(&directory)
            && let Ok(flags) = ioctl_getflags(&directory)
        {
            let _ = ioctl_setflags(&directory, flags | IFlags::TOPDIR);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (disk, directory, num_files);
}

/// Returns whether another place would be better for so many files. A few files are made in it to
/// see that.
pub(crate) fn is_slow(disk: Disk<'_>, directory: impl AsFd, num_files: usize) -> bool {
    if num_files < MANY_FILES || !is_ext4(&directory) {
        return false;
    }
    let probe = |number: usize| -> io::Result<(u64, Duration)> {
        let begun = Instant::now();
        let made = disk.create(directory.as_fd(), format!("probe-{number}"))?;
        let took = begun.elapsed();
        Ok((made.metadata()?.ino(), took))
    };
    let probes: io::Result<Vec<_>> = (0..PROBES).map(probe).collect();
    // The save reports what is wrong.
    probes.is_ok_and(|probes| {
        // Those between were deleted, or the search for one takes long.
        probes.windows(2).any(|pair| pair[1].0 != pair[0].0 + 1)
            || probes.iter().all(|(_, took)| *took > SLOW)
    })
}
