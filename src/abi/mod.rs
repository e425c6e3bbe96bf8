//! The C boundary: all 193 exported names (spec §1.2, delta §5). Pointers and C integers end here.
//!
//! Each function has an entry in a table (`exports!`), which emits it twice at one address: weak as `nccl…`
//! and strong as `pnccl…`, so that a tool can put itself in front of the first and call the second. The
//! body is an ordinary Rust function beside the table; nothing in this library calls an exported name.
//!
//! `boundary` has what every entry does: a panic becomes `ncclInternalError`, an error its code, a WARN
//! line and the text of `ncclGetLastError`.

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

/// Emits functions of the C interface. An entry names the function, its twin, the C signature and the body;
/// the body is called with the same arguments and gives what `boundary::Answer` can turn into the C result.
macro_rules! exports {
    ($( $(#[$meta:meta])* fn $name:ident = $twin:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty = $body:path; )*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        /// The C interface's: pointers are NULL or valid for what the function does with them.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $twin($($arg: $type),*) -> $ret {
            let call = crate::log::Place { file: crate::abi::boundary::source(file!()), line: line!(), function: stringify!($name) };
            // SAFETY: the caller keeps the contract above, which is the body's.
            #[allow(unused_unsafe)]
            crate::abi::boundary::guard(&call, || unsafe { $body($($arg),*) })
        }
        // Where the linker cannot export a weak alias, the name is a function of its own.
        $(#[$meta])*
        ///
        /// # Safety
        /// The C interface's: pointers are NULL or valid for what the function does with them.
        #[cfg(not(weak_names))]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            let call = crate::log::Place { file: crate::abi::boundary::source(file!()), line: line!(), function: stringify!($name) };
            // SAFETY: the caller keeps the contract above, which is the body's.
            #[allow(unused_unsafe)]
            crate::abi::boundary::guard(&call, || unsafe { $body($($arg),*) })
        }
        #[cfg(weak_names)]
        core::arch::global_asm!(
            concat!(".weak ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(".set ", stringify!($name), ", ", stringify!($twin)),
        );
    )* };
}
pub(crate) use exports;
