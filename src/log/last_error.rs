//! The text of `ncclGetLastError`: one buffer for the process.

use super::hold;
use std::ffi::c_char;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of the buffer, with the NUL at the end.
const SIZE: usize = 1024;

/// C code reads this buffer without a lock, at any time; the last byte is never written.
static TEXT: [AtomicU8; SIZE] = [const { AtomicU8::new(0) }; SIZE];
static WRITER: Mutex<()> = Mutex::new(());

/// Replaces the text, cut to 1023 bytes on a character boundary.
pub(super) fn set(text: &str) {
    let end = text.floor_char_boundary(SIZE - 1);
    // In a forked child the one that holds it may be missing: then texts may mix, at worst.
    let _one_writer = hold(|| WRITER.lock(), || WRITER.try_lock());
    for (to, from) in TEXT.iter().zip(text.as_bytes()[..end].iter().chain(std::iter::repeat(&0))) {
        to.store(*from, Ordering::Relaxed);
    }
}

/// The buffer as C sees it: never NULL, always NUL-terminated, the same address for ever.
pub fn last_error() -> *const c_char {
    TEXT.as_ptr().cast()
}

/// A copy of the text.
pub fn last_error_text() -> String {
    let _one_writer = hold(|| WRITER.lock(), || WRITER.try_lock());
    let bytes: Vec<u8> = TEXT.iter().map(|b| b.load(Ordering::Relaxed)).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
