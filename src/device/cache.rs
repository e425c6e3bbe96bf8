//! Files that can be made again: one for each key, below the user's cache folder. Whatever goes wrong here costs time
//! only.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::sys::{self, off_standard};

/// Folder below the user's cache folder.
const FOLDER: &str = "oxccl";
/// A file begins with this, the length of the rest, and the rest's hash: what is not whole is not used.
const MAGIC: &[u8; 8] = b"oxccl\x00\x01\n";
const HEADER: usize = MAGIC.len() + 16;
/// The largest file that is read, in bytes.
const LIMIT: u64 = 64 << 20;

/// How long one process waits for another that makes a file, as tries and the time between them: two minutes.
const TRIES: u32 = 1200;
const PAUSE: Duration = Duration::from_millis(100);

/// One file of the cache.
pub(super) struct Cache {
    path: PathBuf,
}

/// FNV-1a: the same number in every build of this library.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The user's cache folder (XDG base directories): a relative `XDG_CACHE_HOME` does not count.
fn folder(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(xdg).or_else(|| absolute(home).map(|home| home.join(".cache"))).map(|folder| folder.join(FOLDER))
}

impl Cache {
    /// The file for a name and the bytes that its content depends on.
    pub(super) fn open(name: &str, input: &[u8]) -> Cache {
        let folder = folder(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"));
        // Without a folder, reading and writing fail, as on a read-only disk.
        Cache::below(&folder.unwrap_or_default(), name, input)
    }

    fn below(folder: &Path, name: &str, input: &[u8]) -> Cache {
        Cache { path: folder.join(format!("{name}-{:016x}", hash(input))) }
    }

    /// Where the file is, or would be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The content, where the file is there and whole.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let size = fs::metadata(&self.path).ok().filter(fs::Metadata::is_file)?.len();
        let mut bytes = if size <= LIMIT { fs::read(&self.path).ok()? } else { return None };
        let header = bytes.get(..HEADER)?;
        let number = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let whole = header.starts_with(MAGIC)
            && number(8) == Some((bytes.len() - HEADER) as u64)
            && number(16) == Some(hash(&bytes[HEADER..]));
        whole.then(|| bytes.split_off(HEADER))
    }

    /// Keeps other processes from making the file at the same time, as long as the result lives. Who cannot lock, or
    /// has waited long enough, goes on without.
    pub(super) fn lock(&self) -> Option<fs::File> {
        let folder = self.path.parent().filter(|folder| folder.is_absolute())?;
        fs::create_dir_all(folder).ok()?;
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(folder.join("lock"));
        let file = file.and_then(off_standard).ok()?;
        for _ in 0..TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(file),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => thread::sleep(PAUSE),
                Err(_) => return None,
            }
        }
        None
    }

    /// Puts the content there. Others see the old file or the new one, never a part.
    pub(super) fn write(&self, content: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| folder.is_absolute());
        let folder = folder.ok_or_else(|| io::Error::other("neither XDG_CACHE_HOME nor HOME is an absolute path"))?;
        fs::create_dir_all(folder)?;
        let fresh = self.path.with_extension(format!("{:08x}.tmp", sys::random::<u32>()));
        let written = write_file(&fresh, content).and_then(|()| fs::rename(&fresh, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        written
    }
}

fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = off_standard(fs::File::create_new(path)?)?;
    file.write_all(MAGIC)?;
    file.write_all(&(content.len() as u64).to_le_bytes())?;
    file.write_all(&hash(content).to_le_bytes())?;
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("oxccl-cache-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let folder = scratch("read");
        let cache = Cache::below(&folder, "kernels", b"source");
        assert_eq!(cache.read(), None);
        cache.write(b"code").expect("a writable folder");
        assert_eq!(cache.read().as_deref(), Some(&b"code"[..]));
        assert_eq!(Cache::below(&folder, "kernels", b"other source").read(), None);
        let whole = fs::read(cache.path()).expect("the file");
        for cut in 0..whole.len() {
            fs::write(cache.path(), &whole[..cut]).expect("a writable file");
            assert_eq!(cache.read(), None, "cut at {cut}");
        }
        let mut flipped = whole;
        flipped[HEADER] ^= 1;
        fs::write(cache.path(), flipped).expect("a writable file");
        assert_eq!(cache.read(), None);
        cache.write(b"new").expect("a writable folder");
        assert_eq!(cache.read().as_deref(), Some(&b"new"[..]));
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1, "temporary files were left");
        fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn one_process_makes_a_file_at_a_time() {
        let folder = scratch("lock");
        let cache = Cache::below(&folder, "kernels", b"source");
        let held = cache.lock().expect("a writable folder");
        let second = thread::scope(|scope| {
            let waiting = scope.spawn(|| cache.lock().is_some());
            thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(held);
            waiting.join().expect("no panic")
        });
        assert!(second);
        fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_and_no_more() {
        let file = scratch("file");
        fs::write(&file, b"").expect("a temporary file");
        let cache = Cache::below(&file.join("below"), "kernels", b"");
        assert!(cache.write(b"code").is_err() && cache.lock().is_none());
        assert_eq!(cache.read(), None);
        assert!(Cache::below(Path::new(""), "kernels", b"").write(b"code").is_err());
        fs::remove_file(&file).expect("the file");
    }

    #[test]
    fn the_folder_is_the_users() {
        let text = |text: &str| Some(OsString::from(text));
        assert_eq!(folder(text("/x"), text("/h")), Some(PathBuf::from("/x/oxccl")));
        assert_eq!(folder(text("x"), text("/h")), Some(PathBuf::from("/h/.cache/oxccl")));
        assert_eq!(folder(text(""), None), None);
    }
}
