//! Reading archives.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;
use smallvec::SmallVec;

use super::super::checksums::{CHECKSUMS_FILE, Checksums};
use super::super::io::{Disk, open_to_read};
use super::super::map::{FileIdentity, Mapping, relative};
use super::super::read::Files;
use super::super::{METADATA_FILE, Named, StorageError, StorageResult, file};
use super::directory::{Entry, Range, read_directory, u16_at, u32_at};
use super::{ENCRYPTED_FLAG, LOCAL_BYTES, LOCAL_SIGNATURE, Method};

/// So much memory is taken at once for an entry that is stored as it is.
const SURE_BYTES: usize = 64 << 20;

/// An open archive.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    /// The name that paths of entries begin with.
    root: PathBuf,
    file: Arc<File>,
    entries: Named<Entry>,
    /// The offset of the central directory: entries end before it.
    directory: u64,
    /// True if stores to tensors over it reach the file.
    is_writable: bool,
    mapping: OnceLock<Arc<Mapping>>,
}

impl Archive {
    /// Opens an archive and reads its directory; nothing is written.
    ///
    /// # Errors
    /// There is no such file, or it is not an archive.
    pub fn open(path: &Path) -> StorageResult<Self> {
        let file = open_to_read(path);
        Self::of_file(path, file.map_err(|source| StorageError::io(path, source))?)
    }

    /// Opens an archive whose tensors are to be stored to.
    ///
    /// # Errors
    /// Those of [`Archive::open`]; the file is not writable.
    pub fn open_writable(path: &Path) -> StorageResult<Self> {
        let file = Disk::REAL.open(path, OFlags::RDWR | OFlags::NONBLOCK);
        let opened = Self::of_file(path, file.map_err(|source| StorageError::io(path, source))?)?;
        Ok(Self {
            is_writable: true,
            ..opened
        })
    }

    pub(super) fn of_file(path: &Path, file: File) -> StorageResult<Self> {
        let not_archive = |reason: String| StorageError::NotArchive {
            path: path.to_path_buf(),
            reason,
        };
        let (entries, directory) = read_directory(&file).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => not_archive(error.to_string()),
            _ => StorageError::io(path, error),
        })?;
        if !entries.contains_key(METADATA_FILE) {
            return Err(not_archive(format!(
                "it is a zip file without a '{METADATA_FILE}' at the top"
            )));
        }
        let mut root = path.as_os_str().to_owned();
        root.push("::");
        Ok(Self {
            path: path.to_path_buf(),
            root: PathBuf::from(root),
            file: Arc::new(file),
            entries,
            directory,
            is_writable: false,
            mapping: OnceLock::new(),
        })
    }

    /// The archive.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the beginning of the paths of entries, for messages and for [`Files`].
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns whether stores to tensors over it reach the file.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Returns whether the name leads to the archive that is open.
    #[must_use]
    pub fn is_current(&self) -> bool {
        FileIdentity::of_open(&self.file)
            .is_some_and(|opened| FileIdentity::of_path(&self.path) == Some(opened))
    }

    /// The entries, in the order of the directory.
    #[must_use]
    pub fn entries(&self) -> &Named<Entry> {
        &self.entries
    }

    /// The name of an entry, of a path that begins with [`Archive::root`].
    #[must_use]
    pub fn name_of<'p>(&self, path: &'p Path) -> Option<&'p str> {
        relative(path, &self.root)?.to_str()
    }

    /// Returns the number of bytes that are mapped; 0 before they are.
    pub(super) fn mapped_bytes(&self) -> u64 {
        self.mapping.get().map_or(0, |mapping| mapping.len() as u64)
    }

    /// The mapping of all of the archive: writable where the archive is, otherwise private.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn mapping(&self) -> StorageResult<&Arc<Mapping>> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let refused = |source| StorageError::io(&self.path, source);
        let metadata = self.file.metadata().map_err(refused)?;
        let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        let mapped = Mapping::new(&self.file, &metadata, length, self.is_writable);
        let mapped = Arc::new(mapped.map_err(refused)?);
        Ok(self.mapping.get_or_init(|| mapped))
    }

    /// Returns the offset of the bytes of an entry.
    ///
    /// # Errors
    /// Its local header is damaged, speaks of another entry, or reaches beyond the end.
    pub fn offset(&self, name: &str, entry: &Entry) -> StorageResult<u64> {
        self.offset_by(name, entry, |offset, header| {
            Disk::REAL.read_exact_at(&self.file, header, offset).is_ok()
        })
    }

    /// [`Archive::offset`], by a function that fills a buffer with what is in the file at an offset, or
    /// says that it cannot.
    pub(super) fn offset_by(
        &self,
        name: &str,
        entry: &Entry,
        read: impl FnOnce(u64, &mut [u8]) -> bool,
    ) -> StorageResult<u64> {
        let damaged = |reason: &str| self.damaged(name, reason);
        if entry.flags & ENCRYPTED_FLAG != 0 {
            return Err(damaged("it is encrypted"));
        }
        let header_bytes = LOCAL_BYTES + name.len();
        let mut header: SmallVec<[u8; 128]> = SmallVec::from_elem(0, header_bytes);
        if !read(entry.header, &mut header) {
            return Err(damaged("its header is not there"));
        }
        if u32_at(&header, 0) != LOCAL_SIGNATURE {
            return Err(damaged("its header is invalid"));
        }
        if usize::from(u16_at(&header, 26)) != name.len()
            || &header[LOCAL_BYTES..] != name.as_bytes()
        {
            return Err(damaged("its header names another entry"));
        }
        let offset = entry.header + header_bytes as u64 + u64::from(u16_at(&header, 28));
        let end = offset.checked_add(entry.packed);
        if end.is_none_or(|end| end > self.directory) {
            return Err(damaged("it ends beyond the archive"));
        }
        Ok(offset)
    }

    /// The bytes of an entry, checked against its CRC-32 where they are compressed.
    ///
    /// # Errors
    /// The entry is damaged, or compressed by a method that is not known.
    pub fn read_entry(&self, name: &str, entry: &Entry) -> StorageResult<Vec<u8>> {
        let length = usize::try_from(entry.length).unwrap_or(usize::MAX);
        if entry.method == 0 && entry.packed == entry.length && length <= SURE_BYTES {
            let offset = self.offset(name, entry)?;
            let mut bytes = vec![0; length];
            Disk::REAL
                .read_exact_at(&self.file, &mut bytes, offset)
                .map_err(|error| self.damaged(name, &error.to_string()))?;
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        if entry.method != 0 || entry.packed == entry.length {
            bytes.try_reserve_exact(length.min(1 << 20)).ok();
        }
        let mut has_room = true;
        let crc32 = self.stream(name, entry, |piece| {
            has_room = has_room && bytes.try_reserve(piece.len()).is_ok();
            if has_room {
                bytes.extend_from_slice(piece);
            }
        })?;
        if !has_room {
            return Err(self.damaged(name, "it does not fit into memory"));
        }
        if entry.method != 0 && crc32 != entry.crc32 {
            return Err(self.damaged(name, "its bytes are not those of its checksum"));
        }
        Ok(bytes)
    }

    /// Shows the bytes of an entry to `take`, in order; their CRC-32.
    pub(super) fn stream(
        &self,
        name: &str,
        entry: &Entry,
        mut take: impl FnMut(&[u8]),
    ) -> StorageResult<u32> {
        let method = Method::from_number(entry.method)
            .ok_or_else(|| self.damaged(name, "its method of compression is not known"))?;
        let range = Range {
            file: &self.file,
            at: self.offset(name, entry)?,
            left: entry.packed,
        };
        let broken = |error: io::Error| self.damaged(name, &error.to_string());
        let mut reader = method
            .decompress(BufReader::with_capacity(1 << 18, range), entry.length)
            .map_err(broken)?;
        let mut buffer = vec![0; 1 << 18];
        let mut length = 0_u64;
        let mut crc32 = file::Crc32::default();
        loop {
            let read = match reader.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(broken)?,
            };
            length += read as u64;
            if length > entry.length {
                return Err(self.damaged(name, "it is longer than the directory says"));
            }
            if read == 0 {
                break;
            }
            crc32.update(&buffer[..read]);
            take(&buffer[..read]);
        }
        if length != entry.length {
            return Err(self.damaged(name, "it is shorter than the directory says"));
        }
        Ok(crc32.finish())
    }

    /// The checksums that the archive has; none for one of the published release.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn checksums(&self) -> StorageResult<Checksums> {
        let Some(entry) = self.entries.get(CHECKSUMS_FILE) else {
            return Ok(Checksums::default());
        };
        let bytes = self.read_entry(CHECKSUMS_FILE, entry)?;
        String::from_utf8(bytes)
            .map_err(|_| "they are no text".to_owned())
            .and_then(|text| Checksums::parse(&text))
            .map_err(|reason| self.damaged(CHECKSUMS_FILE, &reason))
    }

    pub(super) fn damaged(&self, name: &str, reason: &str) -> StorageError {
        StorageError::BadEntry {
            path: self.path.clone(),
            name: name.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

impl Files for Archive {
    fn read(&self, path: &Path) -> StorageResult<Vec<u8>> {
        let found = self
            .name_of(path)
            .and_then(|name| Some((name, self.entries.get(name)?)));
        match found {
            Some((name, entry)) => self.read_entry(name, entry),
            None => Err(StorageError::io(
                path,
                io::Error::from(io::ErrorKind::NotFound),
            )),
        }
    }

    fn exists(&self, path: &Path) -> bool {
        let Some(name) = self.name_of(path) else {
            return false;
        };
        self.entries.contains_key(name)
            || self
                .entries
                .contains_key(&format!("{name}/{METADATA_FILE}"))
    }
}

/// Returns whether a path leads to a directory.
pub(super) fn is_directory(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_dir())
}
