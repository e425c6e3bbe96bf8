//! Reserved addresses, and files put there: the page tables behind `cuMemAddressReserve` and `cuMemMap`.

use super::PAGE;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

/// What may be done with mapped pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rights {
    /// Nothing.
    None = 0,
    /// Reading.
    Read = 1,
    /// Reading and writing.
    Write = 3,
}

const RESERVED: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Takes `size` bytes of addresses, nothing behind them, at a multiple of `align`; at `hint` if that is free.
pub fn reserve(size: usize, align: usize, hint: usize) -> Option<usize> {
    if hint != 0 && hint.is_multiple_of(align) {
        let flags = RESERVED | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces nothing.
        let at = unsafe { libc::mmap(hint as *mut _, size, libc::PROT_NONE, flags, -1, 0) };
        if at as usize == hint {
            return Some(hint);
        }
        if at != libc::MAP_FAILED {
            release(at as usize, size);
        }
    }
    let padded = size.checked_add(align - PAGE)?;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), padded, libc::PROT_NONE, RESERVED, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start as usize;
    let base = start.next_multiple_of(align);
    release(start, base - start);
    release(base + size, start + padded - (base + size));
    Some(base)
}

/// Gives addresses back.
pub fn release(base: usize, size: usize) {
    if size > 0 {
        // SAFETY: pages of a reservation of ours; the caller has seen that nothing uses them.
        unsafe { libc::munmap(base as *mut _, size) };
    }
}

/// Puts the beginning of a file at reserved addresses, not accessible yet. False: the system has no room for it.
pub fn place(base: usize, size: usize, file: &OwnedFd) -> bool {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: replaces reserved pages, which nobody can have used.
    let at = unsafe { libc::mmap(base as *mut _, size, libc::PROT_NONE, flags, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: advice on pages that we mapped; it may be refused, no matter.
    unsafe { libc::madvise(at, size, libc::MADV_HUGEPAGE) };
    true
}

/// Makes placed pages a mere reservation again. False: the system refused, and nothing has changed.
pub fn clear(base: usize, size: usize) -> bool {
    // SAFETY: replaces pages that `place` put there; the client may no longer use them.
    unsafe { libc::mmap(base as *mut _, size, libc::PROT_NONE, RESERVED | libc::MAP_FIXED, -1, 0) != libc::MAP_FAILED }
}

/// Sets what may be done with placed pages. False: the system refused.
pub fn protect(base: usize, size: usize, rights: Rights) -> bool {
    let rights = match rights {
        Rights::None => libc::PROT_NONE,
        Rights::Read => libc::PROT_READ,
        Rights::Write => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: pages that `place` put there.
    unsafe { libc::mprotect(base as *mut _, size, rights) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_where_it_was_wished() {
        const ALIGN: usize = 1 << 24;
        let base = reserve(3 * PAGE, ALIGN, 0).expect("addresses are plenty");
        assert!(base.is_multiple_of(ALIGN));
        // Taken: somewhere else. Free again: there.
        let other = reserve(PAGE, PAGE, base).expect("addresses are plenty");
        assert_ne!(other, base);
        release(base, 3 * PAGE);
        assert_eq!(reserve(PAGE, PAGE, base), Some(base));
        release(base, PAGE);
        release(other, PAGE);
    }
}
