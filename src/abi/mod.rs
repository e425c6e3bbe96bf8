//! The C boundary: all 193 exported names. Pointers and C integers end here.
//!
//! Each function is a plain `extern "C"` function, strong as `pnccl…`, and a list in its file (`weak_aliases!`) gives
//! it its second name, weak as `nccl…`, at the same address, so that a tool can put itself in front of the first and
//! call the second. Nothing in this library calls an exported name. cbindgen makes prototypes of the functions, which a
//! test compiles together with `include/nccl.h`.
//!
//! `boundary` has what every entry does: a panic becomes `ncclInternalError`, an error its code, a WARN
//! line and the text of `ncclGetLastError`.
//!
//! # Safety
//! Every function's contract is the C interface's: pointers are NULL or valid for what it is documented to do with
//! them.

#![allow(clippy::too_many_arguments)] // the signatures are C's

mod boundary;
mod collective;
mod device;
mod environment;
mod group;
mod library;
mod lifecycle;
mod one_sided;
mod param;
mod query;
mod read;
#[cfg(test)]
mod tests;
pub mod types;
mod window;

/// The weak names of a file's functions: for each `ncclX` an alias of its `pncclX`. An alias and what it stands for
/// must come to lie in one object, so each file has a list of its own.
#[cfg(weak_names)]
macro_rules! weak_aliases {
    ($($name:ident),* $(,)?) => { $(
        core::arch::global_asm!(
            concat!(".weak ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(".set ", stringify!($name), ", p", stringify!($name)),
        );
    )* };
}

/// The same where the linker cannot export a weak alias: each `ncclX` is a function that jumps to its `pncclX`, so that
/// arguments and result stay where the C interface has them.
#[cfg(not(weak_names))]
macro_rules! weak_aliases {
    ($($name:ident),* $(,)?) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(concat!("jmp p", stringify!($name)));
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("b p", stringify!($name)));
        }
    )* };
}
use weak_aliases;
