//! Telling whether tensors changed: a checksum of 64 bits of each.

use std::io;
use std::sync::Mutex;

use crc_fast::CrcAlgorithm::Crc64Nvme;
use crc_fast::{Digest, checksum_combine};

use super::super::source::Source;
use super::super::thread_count;
use crate::threads::STORAGE;

/// The bytes of which one thread takes a checksum at a time.
const PART_BYTES: usize = 4 << 20;

/// Part of a source, or several small sources.
struct Task {
    sources: std::ops::Range<usize>,
    offset: usize,
    length: usize,
}

/// The CRC-64 of the bytes of each source, taken by several threads.
///
/// # Errors
/// Bytes that are elsewhere cannot be fetched.
pub fn digests(sources: &[Source], num_threads: usize) -> io::Result<Vec<u64>> {
    let tasks = tasks(sources);
    let found: Vec<Mutex<Vec<u64>>> = tasks.iter().map(|_| Mutex::default()).collect();
    STORAGE.try_for_each(tasks.len(), thread_count(num_threads), |number| {
        let Task {
            sources: ref range,
            offset,
            length,
        } = tasks[number];
        let checksums = sources[range.clone()].iter().map(|source| match source {
            Source::Memory(memory) if length > 0 => {
                whole(&Source::Memory(memory.part(offset, length)))
            }
            source => whole(source),
        });
        let checksums = checksums.collect::<io::Result<Vec<u64>>>()?;
        if let Ok(mut place) = found[number].lock() {
            *place = checksums;
        }
        Ok::<_, io::Error>(())
    })?;
    let mut digests = vec![0; sources.len()];
    for (task, found) in tasks.iter().zip(found) {
        let found = found.into_inner().unwrap_or_default();
        for (source, checksum) in task.sources.clone().zip(found) {
            digests[source] = if task.offset == 0 {
                checksum
            } else {
                checksum_combine(Crc64Nvme, digests[source], checksum, task.length as u64)
            };
        }
    }
    Ok(digests)
}

fn whole(source: &Source) -> io::Result<u64> {
    let mut digest = Digest::new(Crc64Nvme);
    let update = |_, unit: &[u8]| {
        digest.update(unit);
        Ok(())
    };
    source.units(&mut Vec::new(), update, |error| error)?;
    Ok(digest.finalize())
}

fn tasks(sources: &[Source]) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    let mut small = 0;
    for (number, source) in sources.iter().enumerate() {
        let length = usize::try_from(source.len()).unwrap_or(usize::MAX);
        match source {
            Source::Memory(_) if length > PART_BYTES => {
                tasks.extend((0..length).step_by(PART_BYTES).map(|offset| Task {
                    sources: number..number + 1,
                    offset,
                    length: PART_BYTES.min(length - offset),
                }));
                small = PART_BYTES;
            }
            _ => {
                small += length;
                match tasks.last_mut() {
                    Some(last) if small <= PART_BYTES && last.length == 0 => {
                        last.sources.end = number + 1;
                    }
                    _ => {
                        tasks.push(Task {
                            sources: number..number + 1,
                            offset: 0,
                            length: 0,
                        });
                        small = length;
                    }
                }
            }
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use crc_fast::checksum;

    use super::super::super::region::Region;
    use super::*;

    #[test]
    fn test_a_checksum_does_not_depend_on_how_it_is_taken() {
        let large: Vec<u8> = (0..=250).cycle().take(PART_BYTES * 2 + 77).collect();
        let sources = [
            Source::Bytes(vec![1, 2]),
            Source::Memory(Region::of(&large)),
            Source::Bytes(large.clone()),
            Source::EMPTY,
            Source::Memory(Region::of(&large[..9])),
        ];
        let found = digests(&sources, 2).unwrap();
        assert_eq!(found[1], checksum(Crc64Nvme, &large));
        assert_eq!(found[1], found[2]);
        assert_eq!(found[4], checksum(Crc64Nvme, &large[..9]));
        assert_eq!(found[0], checksum(Crc64Nvme, &[1, 2]));
    }
}
