//! `SOFTCUDA_FAULT=NAME:k[:code][,…]`: the k-th use of an entry point in this process fails.
//!
//! One place serves every entry point: the boundary asks [`due`] with the type of its body, a closure of the function
//! whose name the client knows. (Names of types are made for diagnostics, as this is; `tests/fault.rs` tries every
//! exported function.)

use crate::abi::os;
use crate::error::CudaError;
use std::any::type_name;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Faults that one process may ask for.
const MAX_FAULTS: usize = 4096;
/// Functions whose name begins with one of these fail for want of memory.
const ALLOCATIONS: [&str; 6] = ["cuMemAlloc", "cuMemHostAlloc", "cuMemCreate", "cuMemAddressReserve", "cuArray", "cuMipmapped"];

/// One entry of the list.
struct Fault {
    /// With or without the version: `cuMemAlloc` is `cuMemAlloc_v2` as well.
    name: String,
    /// Which use fails; 0 for each.
    nth: u64,
    code: Option<i32>,
    uses: AtomicU64,
}

/// A name without `_v2`, `_ptsz`, …
fn base(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((head, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => head,
        _ => name,
    }
}

fn usual(name: &str) -> i32 {
    let allocates = ALLOCATIONS.iter().any(|start| name.starts_with(start));
    if allocates { CudaError::OUT_OF_MEMORY.0 } else { CudaError::UNKNOWN.0 }
}

impl Fault {
    /// From `NAME:k` or `NAME:k:code`.
    fn parse(text: &str) -> Option<Fault> {
        let mut parts = text.trim().split(':');
        let name = parts.next().filter(|name| !name.is_empty())?.to_owned();
        let nth = parts.next()?.parse().ok()?;
        let code = parts.next().map(str::parse).transpose().ok()?;
        parts.next().is_none().then_some(Fault { name, nth, code, uses: AtomicU64::new(0) })
    }

    /// Counts a use, if it is one.
    fn count(&self, name: &str) -> Option<i32> {
        if self.name != name && self.name != base(name) {
            return None;
        }
        let number = self.uses.fetch_add(1, Ordering::Relaxed) + 1;
        (self.nth == 0 || self.nth == number).then(|| self.code.unwrap_or_else(|| usual(name)))
    }
}

fn read(text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()).take(MAX_FAULTS) {
        match Fault::parse(part) {
            Some(fault) => faults.push(fault),
            None => os::say(&format!("SOFTCUDA_FAULT: {part} is not NAME:k or NAME:k:code")),
        }
    }
    faults
}

fn faults() -> &'static [Fault] {
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    FAULTS.get_or_init(|| std::env::var("SOFTCUDA_FAULT").map(|text| read(&text)).unwrap_or_default())
}

/// The name of the function that a closure of type `F` is in.
fn name_of<F>() -> &'static str {
    let mut path = type_name::<F>();
    while let Some(outer) = path.strip_suffix("::{{closure}}") {
        path = outer;
    }
    path.rsplit_once("::").map_or(path, |(_, name)| name)
}

/// The code with which this use of the entry point whose body is `F` is to fail.
#[inline]
pub fn due<F>() -> Option<i32> {
    let faults = faults();
    if faults.is_empty() { None } else { find(faults, name_of::<F>()) }
}

#[cold]
fn find(faults: &[Fault], name: &str) -> Option<i32> {
    // All of them count this use, whichever it is that fails.
    let due = faults.iter().filter_map(|fault| fault.count(name)).fold(None, |first: Option<i32>, code| first.or(Some(code)));
    if let Some(code) = due {
        os::say_once(&format!("fault {name}"), &format!("SOFTCUDA_FAULT: {name} fails with {code}"));
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of<F>(_: F) -> &'static str {
        name_of::<F>()
    }

    #[test]
    fn names_of_closures() {
        assert_eq!(type_of(|| ()), "names_of_closures");
        assert_eq!(type_of(type_of(|| || ()).len()), "usize");
    }

    #[test]
    fn lists() {
        let faults = read("cuMemAlloc:2,cuStreamCreate:1:700, nonsense ,x:y,cuInit:0");
        let uses = |name| faults.iter().filter_map(|fault| fault.count(name)).collect::<Vec<_>>();
        assert_eq!(faults.len(), 3);
        assert_eq!((uses("cuMemAlloc_v2"), uses("cuMemAlloc_v2"), uses("cuMemAlloc_v2")), (vec![], vec![2], vec![]));
        assert_eq!((uses("cuStreamCreate"), uses("cuStreamCreate")), (vec![700], vec![]));
        assert_eq!((uses("cuInit"), uses("cuInit")), (vec![999], vec![999]));
        assert_eq!(uses("cuMemAllocHost_v2"), vec![]);
        assert_eq!((base("cuMemAlloc_v2_ptds"), base("cu_vx")), ("cuMemAlloc", "cu_vx"));
    }
}
