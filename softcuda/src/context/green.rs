//! Green contexts: a part of a device's SMs with streams of its own, over the memory, modules and events of the primary
//! context.

use super::{Context, State};
use crate::device::{self, Span};
use crate::error::{CudaError, Outcome};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// `CU_GREEN_CTX_DEFAULT_STREAM`
const DEFAULT_STREAM: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`, and with `_MAX_POTENTIAL_CLUSTER_SIZE` all flags of a split.
const IGNORE_COSCHEDULING: u32 = 1;
const SPLIT_FLAGS: u32 = 3;
/// SMs that a GPU of this compute capability parts only together, and without regard to clusters.
const ALIGNMENT: u32 = 8;
const FINE_ALIGNMENT: u32 = 2;
/// Pieces that SMs may lie in.
pub const MAX_SPANS: usize = 9;

/// Where SMs were got from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A device or context.
    Whole,
    /// A group of the split with this number, which cannot be split again.
    Group(u32),
    /// What that split has left.
    Rest(u32),
}

impl Source {
    fn split(self) -> Option<u32> {
        match self {
            Source::Whole => None,
            Source::Group(number) | Source::Rest(number) => Some(number),
        }
    }
}

/// SMs of a device (`CUdevResource`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Index of the device.
    pub device: usize,
    /// Where it is from.
    pub source: Source,
    /// How many go together.
    pub alignment: u32,
    /// Which, in order, no two of them adjacent.
    pub spans: Vec<Span>,
}

/// Appends SMs, to the last span if they follow it.
fn append(spans: &mut Vec<Span>, (first, count): Span) {
    match spans.last_mut() {
        _ if count == 0 => {}
        Some((start, length)) if *start + *length == first => *length += count,
        _ => spans.push((first, count)),
    }
}

/// Takes the first `count` SMs away.
fn take(spans: &mut Vec<Span>, mut count: u32) -> Vec<Span> {
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    for (first, length) in spans.drain(..) {
        let part = length.min(count);
        append(&mut taken, (first, part));
        append(&mut left, (first + part, length - part));
        count -= part;
    }
    *spans = left;
    taken
}

impl Resource {
    /// All SMs of a device.
    pub fn of_device(driver: &device::State, device: usize) -> Resource {
        Resource::whole(device, vec![(0, driver.devices[device].sms.count())])
    }

    fn whole(device: usize, spans: Vec<Span>) -> Resource {
        let mut whole = Resource { device, source: Source::Whole, alignment: 1, spans };
        // A device with fewer SMs than any GPU has can be parted all the same.
        let fits = |alignment: &u32| whole.count() >= *alignment;
        whole.alignment = [ALIGNMENT, FINE_ALIGNMENT].into_iter().find(fits).unwrap_or(1);
        whole
    }

    /// What a context may use.
    pub fn of_context(driver: &State, context: &Context) -> Resource {
        let green = driver.greens.get(context.green());
        green.map_or_else(|| Resource::of_device(driver, context.device()), Green::resource)
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.spans.iter().map(|(_, count)| count).sum()
    }

    /// `cuDevSmResourceSplitByCount`: groups of at least `least` SMs, no more than `most`, and what is left.
    /// `INVALID_VALUE` for more SMs than there are and unknown flags, `INVALID_RESOURCE_CONFIGURATION` for a group of
    /// another split and where not one group can be made.
    pub fn split(
        &self,
        driver: &device::State,
        most: usize,
        flags: u32,
        least: u32,
    ) -> Outcome<(Vec<Resource>, Resource)> {
        if flags & !SPLIT_FLAGS != 0 || least > self.count() {
            return Err(CudaError::INVALID_VALUE);
        }
        let fine = flags & IGNORE_COSCHEDULING != 0;
        let alignment = if fine { self.alignment.min(FINE_ALIGNMENT) } else { self.alignment };
        let size = least.max(1).next_multiple_of(alignment);
        let groups = ((self.count() / size) as usize).min(most);
        if groups == 0 || matches!(self.source, Source::Group(_)) {
            return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        }
        let number = driver.unique() as u32;
        let mut left = self.spans.clone();
        let part = |spans, source| Resource { device: self.device, source, alignment, spans };
        let made = (0..groups).map(|_| part(take(&mut left, size), Source::Group(number))).collect();
        Ok((made, part(left, Source::Rest(number))))
    }

    /// Several of one split as one. `INVALID_RESOURCE_CONFIGURATION`: they are not, or one is there twice.
    pub fn join(parts: &[Resource]) -> Outcome<Resource> {
        let (first, others) = parts.split_first().ok_or(CudaError::INVALID_VALUE)?;
        let fits = |other: &Resource| {
            let split = first.source.split().is_some() && other.source.split() == first.source.split();
            split && other.device == first.device && other.alignment == first.alignment
        };
        let mut spans: Vec<Span> = parts.iter().flat_map(|part| part.spans.iter().copied()).collect();
        spans.sort_unstable();
        let twice = spans.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        let mut joined = Vec::new();
        spans.into_iter().for_each(|span| append(&mut joined, span));
        if !others.iter().all(fits) || twice || joined.is_empty() || joined.len() > MAX_SPANS {
            return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        }
        Ok(Resource { spans: joined, ..first.clone() })
    }
}

/// `CUdevResourceDesc`: for the life of the process.
#[derive(Default)]
pub struct Descriptor {
    resource: Mutex<Option<Resource>>,
}

/// `cuDevResourceGenerateDesc`
pub fn describe(driver: &'static State, parts: &[Resource]) -> Outcome<u64> {
    let resource = Resource::join(parts)?;
    let made = driver.descriptors.insert(|descriptor, _| *descriptor.resource.lock() = Some(resource));
    Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.0)
}

/// `CUgreenCtx`
#[derive(Default)]
pub struct Green {
    device: AtomicUsize,
    /// Handle of the `CUcontext` that stands for it.
    context: AtomicU64,
    spans: Mutex<Vec<Span>>,
}

impl Green {
    /// `cuGreenCtxCreate`: retains the primary context.
    pub fn create(driver: &'static State, descriptor: u64, device: usize, flags: u32) -> Outcome<u64> {
        let descriptor = driver.descriptors.get(descriptor).ok_or(CudaError::INVALID_VALUE)?;
        let resource = descriptor.resource.lock().clone().ok_or(CudaError::INVALID_VALUE)?;
        if flags != DEFAULT_STREAM || resource.device != device {
            return Err(CudaError::INVALID_VALUE);
        }
        let device = &driver.devices[device];
        let home = driver.primary(device).retain(driver, device.index)?;
        let made = Green::insert(driver, home, resource.spans);
        if made.is_err() {
            driver.primary(device).release(driver)?;
        }
        made
    }

    fn insert(driver: &'static State, home: &'static Context, spans: Vec<Span>) -> Outcome<u64> {
        let group = driver.devices[home.device()].sms.group(&spans);
        let made = driver.greens.insert(|green, _| {
            green.device.store(home.device(), Ordering::Relaxed);
            *green.spans.lock() = spans;
        });
        let (handle, green) = made.ok_or(CudaError::OUT_OF_MEMORY)?;
        match Context::create_green(driver, home, handle, group) {
            Ok(context) => green.context.store(context.handle(), Ordering::Release),
            Err(error) => {
                driver.greens.remove(handle);
                driver.greens.recycle(handle);
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// `cuGreenCtxDestroy`: releases the primary context; streams stay until they are destroyed, and can do nothing.
    pub fn destroy(driver: &'static State, handle: u64) -> Outcome {
        let green = lookup(driver, handle)?;
        let device = &driver.devices[green.device.load(Ordering::Relaxed)];
        driver.check(device.index)?;
        driver.greens.remove(handle).ok_or(CudaError::INVALID_CONTEXT)?;
        Context::destroy_green(driver, green.context())?;
        driver.greens.recycle(handle);
        driver.primary(device).release(driver)
    }

    /// Handle of its `CUcontext`.
    pub fn context(&self) -> u64 {
        self.context.load(Ordering::Acquire)
    }

    /// Its SMs, which can be split.
    pub fn resource(&self) -> Resource {
        Resource::whole(self.device.load(Ordering::Relaxed), self.spans.lock().clone())
    }
}

/// The valid green context with this handle.
pub fn lookup(driver: &'static State, handle: u64) -> Outcome<&'static Green> {
    driver.greens.get(handle).ok_or(CudaError::INVALID_CONTEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let mut spans = vec![(0, 4), (10, 4)];
        assert_eq!(take(&mut spans, 6), [(0, 4), (10, 2)]);
        assert_eq!(spans, [(12, 2)]);
        append(&mut spans, (14, 1));
        append(&mut spans, (20, 0));
        assert_eq!(spans, [(12, 3)]);
    }

    #[test]
    fn what_goes_together() {
        let part = |source, spans: &[Span]| Resource { device: 0, source, alignment: 8, spans: spans.to_vec() };
        let joined = |parts: &[Resource]| Resource::join(parts).map(|resource| resource.spans);
        let (one, two) = (part(Source::Group(5), &[(0, 8)]), part(Source::Group(5), &[(8, 8)]));
        assert_eq!(joined(std::slice::from_ref(&one)), Ok(vec![(0, 8)]));
        assert_eq!(joined(&[two.clone(), one.clone()]), Ok(vec![(0, 16)]));
        assert_eq!(joined(&[one.clone(), part(Source::Rest(5), &[(20, 3)])]), Ok(vec![(0, 8), (20, 3)]));
        for bad in [part(Source::Group(6), &[(8, 8)]), part(Source::Whole, &[(8, 8)]), one.clone()] {
            assert_eq!(joined(&[one.clone(), bad]), Err(CudaError::INVALID_RESOURCE_CONFIGURATION));
        }
        assert_eq!(joined(&[]), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn small_devices_can_be_split() {
        let alignments = [1, 2, 7, 8, 132].map(|count| Resource::whole(0, vec![(0, count)]).alignment);
        assert_eq!(alignments, [1, 2, 2, 8, 8]);
    }
}
