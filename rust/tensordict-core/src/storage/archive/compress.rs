//! The methods of compression that zip files and Python's `zipfile` know.

use std::io::{self, Read, Write};

use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};

/// The form in which the bytes of an entry are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Unchanged. Only such leaves can be mapped.
    Stored,
    /// zlib's; 0 to 9.
    Deflate(u32),
    /// bzip2's; 1 to 9.
    Bzip2(u32),
    /// LZMA's.
    Lzma,
}

/// The parameters of an LZMA stream in a zip file: a version, the length of what follows, properties.
const LZMA_HEADER_BYTES: usize = 9;

impl Method {
    /// The number of the method in zip files.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Stored => 0,
            Self::Deflate(_) => 8,
            Self::Bzip2(_) => 12,
            Self::Lzma => 14,
        }
    }

    /// The method of a number, at the usual level; None for one that is not known.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Stored,
            8 => Self::Deflate(6),
            12 => Self::Bzip2(9),
            14 => Self::Lzma,
            _ => return None,
        })
    }

    /// The version of the zip format that a reader must know.
    pub(super) fn version(self) -> u16 {
        match self {
            Self::Stored | Self::Deflate(_) => 45,
            Self::Bzip2(_) => 46,
            Self::Lzma => 63,
        }
    }

    pub(super) fn flags(self) -> u16 {
        match self {
            Self::Lzma => super::LZMA_END_FLAG,
            _ => 0,
        }
    }

    /// Compresses what `feed` writes; `refused` makes its error of one of the compression.
    ///
    /// # Errors
    /// Those of `feed`.
    pub(super) fn compress<E>(
        self,
        refused: impl Fn(io::Error) -> E,
        feed: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let mut out = Vec::new();
        match self {
            Self::Stored => {
                feed(&mut out)?;
                Ok(out)
            }
            Self::Deflate(level) => {
                let level = flate2::Compression::new(level);
                let mut encoder = flate2::write::DeflateEncoder::new(out, level);
                feed(&mut encoder)?;
                encoder.finish().map_err(refused)
            }
            Self::Bzip2(level) => {
                let level = bzip2::Compression::new(level);
                let mut encoder = bzip2::write::BzEncoder::new(out, level);
                feed(&mut encoder)?;
                encoder.finish().map_err(refused)
            }
            Self::Lzma => {
                let options = LzmaOptions::with_preset(6);
                out.extend([9, 4, 5, 0, options.get_props()]);
                out.extend(options.dict_size.to_le_bytes());
                let encoder = LzmaWriter::new_no_header(out, &options, true);
                let mut encoder = encoder.map_err(&refused)?;
                feed(&mut encoder)?;
                encoder.finish().map_err(refused)
            }
        }
    }

    /// A reader of the bytes that `compressed` holds, which are to be `length`.
    pub(super) fn decompress<'r>(
        self,
        mut compressed: impl Read + 'r,
        length: u64,
    ) -> io::Result<Box<dyn Read + 'r>> {
        Ok(match self {
            Self::Stored => Box::new(compressed),
            Self::Deflate(_) => Box::new(flate2::read::DeflateDecoder::new(compressed)),
            Self::Bzip2(_) => Box::new(bzip2::read::BzDecoder::new(compressed)),
            Self::Lzma => {
                let mut header = [0; LZMA_HEADER_BYTES];
                compressed.read_exact(&mut header)?;
                let [_, _, header_length, _, properties, size @ ..] = header;
                if header_length != 5 {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the LZMA stream has other properties than those that are known",
                    ));
                }
                // A window of more than all bytes is of no use, and may be a lie.
                let most = u32::try_from(length).unwrap_or(u32::MAX).max(4096);
                let dictionary = u32::from_le_bytes(size).min(most);
                // A name for "until the end marker".
                let unknown = u64::MAX;
                Box::new(LzmaReader::new_with_props(
                    compressed, unknown, properties, dictionary, None,
                )?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_decompress_is_the_inverse_of_compress() {
        let bytes: Vec<u8> = (0..200_000_u32)
            .flat_map(|at| (at / 7).to_le_bytes())
            .collect();
        for method in [
            Method::Stored,
            Method::Deflate(1),
            Method::Bzip2(9),
            Method::Lzma,
        ] {
            for bytes in [&bytes[..], &bytes[..1], &[]] {
                let packed = method.compress(|error| error, |out| out.write_all(bytes));
                let packed = packed.unwrap();
                let mut read = Vec::new();
                let mut reader = method
                    .decompress(packed.as_slice(), bytes.len() as u64)
                    .unwrap();
                reader.read_to_end(&mut read).unwrap();
                assert_eq!(read, bytes, "{method:?}");
            }
        }
    }
}
