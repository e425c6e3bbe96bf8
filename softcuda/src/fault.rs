//! `SOFTCUDA_FAULT=NAME:k[:code][,…]`: the k-th use of an entry point in this process fails. `loseD@NAME:k[:code]`:
//! with that use, device D is lost; `loseD@Nms[:code]`: N milliseconds after `cuInit`; `lose@call`: the program does it
//! itself.
//!
//! One place serves every entry point: the boundary asks [`due`] with the type of its body, a closure of the function
//! whose name the client knows. (Names of types are made for diagnostics, as this is; `tests/fault.rs` tries every
//! exported function.)

use crate::error::{CudaError, Outcome};
use crate::os;
use std::any::type_name;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Faults that one process may ask for.
const MAX_FAULTS: usize = 4096;
/// Functions whose name begins with one of these fail for want of memory.
const ALLOCATIONS: [&str; 6] =
    ["cuMemAlloc", "cuMemHostAlloc", "cuMemCreate", "cuMemAddressReserve", "cuArray", "cuMipmapped"];

/// What calls say of a lost device unless something else is asked for.
const LOST: CudaError = CudaError::LAUNCH_FAILED;

/// Takes a device away with a code. Error: there is no such device.
pub type Lose = fn(usize, i32) -> Outcome;

/// One entry of the list.
struct Fault {
    /// With or without the version: `cuMemAlloc` is `cuMemAlloc_v2` as well.
    name: String,
    /// Which use fails; 0 for each.
    nth: u64,
    code: Option<i32>,
    uses: AtomicU64,
    /// The call does not fail, but this device is lost with it.
    loses: Option<usize>,
}

/// A device that is lost after some time.
struct Timer {
    device: usize,
    after: Duration,
    code: i32,
}

/// All that the variable asks for.
#[derive(Default)]
struct Plan {
    faults: Vec<Fault>,
    timers: Vec<Timer>,
    /// The program may lose devices.
    by_call: bool,
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
        parts.next().is_none().then_some(Fault { name, nth, code, uses: AtomicU64::new(0), loses: None })
    }

    /// Counts a use, if it is one.
    fn count(&self, name: &str, by: Lose) -> Option<i32> {
        if self.name != name && self.name != base(name) {
            return None;
        }
        let number = self.uses.fetch_add(1, Ordering::Relaxed) + 1;
        if self.nth != 0 && self.nth != number {
            return None;
        }
        if let Some(device) = self.loses {
            lose(by, device, self.code.unwrap_or(LOST.0));
            return None;
        }
        Some(self.code.unwrap_or_else(|| usual(name)))
    }
}

impl Timer {
    /// From `Nms` or `Nms:code`.
    fn parse(device: usize, text: &str) -> Option<Timer> {
        let (time, code) = text.split_once(':').map_or((text, None), |(time, code)| (time, Some(code)));
        let after = Duration::from_millis(time.strip_suffix("ms")?.parse().ok()?);
        Some(Timer { device, after, code: code.map_or(Some(LOST.0), |code| code.parse().ok())? })
    }
}

impl Plan {
    fn add(&mut self, text: &str) -> Option<()> {
        let Some((device, what)) = text.trim().strip_prefix("lose").and_then(|rest| rest.split_once('@')) else {
            self.faults.push(Fault::parse(text)?);
            return Some(());
        };
        if device.is_empty() && what == "call" {
            self.by_call = true;
            return Some(());
        }
        let device = device.parse().ok()?;
        match Timer::parse(device, what) {
            Some(timer) => self.timers.push(timer),
            None => self.faults.push(Fault { loses: Some(device), ..Fault::parse(what)? }),
        }
        Some(())
    }

    fn loses(&self) -> bool {
        self.by_call || !self.timers.is_empty() || self.faults.iter().any(|fault| fault.loses.is_some())
    }
}

fn read(text: &str) -> Plan {
    let mut plan = Plan::default();
    for part in text.split(',').filter(|part| !part.trim().is_empty()).take(MAX_FAULTS) {
        if plan.add(part).is_none() {
            os::say(&format!(
                "SOFTCUDA_FAULT: {part} is not NAME:k or NAME:k:code, nor loseDEVICE@ and one of these or Nms"
            ));
        }
    }
    plan
}

fn plan() -> &'static Plan {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| std::env::var("SOFTCUDA_FAULT").map(|text| read(&text)).unwrap_or_default())
}

/// Whether a device may be lost.
pub fn may_lose() -> bool {
    plan().loses()
}

fn lose(by: Lose, device: usize, code: i32) {
    if by(device, code).is_err() {
        os::say_once("loss", &format!("SOFTCUDA_FAULT: there is no device {device} to be lost"));
    }
}

/// From `cuInit` on the time runs.
pub fn start_timers(by: Lose) {
    for timer in &plan().timers {
        let started = os::spawn("softcuda-loss", move || {
            std::thread::sleep(timer.after);
            lose(by, timer.device, timer.code);
        });
        if let Err(error) = started {
            os::say_once("loss", &format!("cannot start a timer's thread: {error}"));
        }
    }
}

/// The name of the function that a closure of type `F` is in.
fn name_of<F>() -> &'static str {
    let mut path = type_name::<F>();
    while let Some(outer) = path.strip_suffix("::{{closure}}") {
        path = outer;
    }
    path.rsplit_once("::").map_or(path, |(_, name)| name)
}

/// The code with which this use of the entry point whose body is `F` is to fail. Where a device is lost with it, `by`
/// takes the device away.
#[inline]
pub fn due<F>(by: Lose) -> Option<i32> {
    let faults = &plan().faults;
    if faults.is_empty() { None } else { find(faults, name_of::<F>(), by) }
}

#[cold]
fn find(faults: &[Fault], name: &str, by: Lose) -> Option<i32> {
    // All of them count this use, whichever it is that fails.
    let counted = faults.iter().filter_map(|fault| fault.count(name, by));
    let due = counted.fold(None, |first: Option<i32>, code| first.or(Some(code)));
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
        let plan = read("cuMemAlloc:2,cuStreamCreate:1:700, nonsense ,x:y,cuInit:0");
        let faults = &plan.faults;
        let uses = |name| faults.iter().filter_map(|fault| fault.count(name, |_, _| Ok(()))).collect::<Vec<_>>();
        assert_eq!(faults.len(), 3);
        assert_eq!((uses("cuMemAlloc_v2"), uses("cuMemAlloc_v2"), uses("cuMemAlloc_v2")), (vec![], vec![2], vec![]));
        assert_eq!((uses("cuStreamCreate"), uses("cuStreamCreate")), (vec![700], vec![]));
        assert_eq!((uses("cuInit"), uses("cuInit")), (vec![999], vec![999]));
        assert_eq!(uses("cuMemAllocHost_v2"), vec![]);
        assert_eq!((base("cuMemAlloc_v2_ptds"), base("cu_vx")), ("cuMemAlloc", "cu_vx"));
    }

    #[test]
    fn losses() {
        let plan = read("lose1@cuLaunchKernel:3,lose0@500ms,lose2@20ms:214,loseX@5ms,lose1@7,lose@call,lose@5ms");
        let timers: Vec<_> =
            plan.timers.iter().map(|timer| (timer.device, timer.after.as_millis(), timer.code)).collect();
        assert_eq!(timers, [(0, 500, 719), (2, 20, 214)]);
        let faults: Vec<_> =
            plan.faults.iter().map(|fault| (&*fault.name, fault.nth, fault.code, fault.loses)).collect();
        assert_eq!(faults, [("cuLaunchKernel", 3, None, Some(1))]);
        assert!(plan.by_call && plan.loses() && read("lose@call").loses() && !read("cuInit:1").loses());
    }
}
