//! cudarc's safe driver interface as a client: it finds `libcuda.so.1` as it would find NVIDIA's, and knows nothing of
//! this library.

mod common;

use common::{role, run_child};
use cudarc::driver::{CudaContext, DriverError, sys};

fn in_children(name: &str, body: impl FnOnce() -> Result<(), DriverError>) {
    if role().is_some() {
        return body().expect("no driver error");
    }
    run_child(name, "run", &[]);
    run_child(name, "run", &[("SOFTCUDA_DELAY_US", "300")]);
}

#[test]
fn a_device_and_its_properties() {
    in_children("a_device_and_its_properties", || {
        assert_eq!(CudaContext::device_count()?, 8);
        let context = CudaContext::new(3)?;
        assert_eq!(context.ordinal(), 3);
        assert_eq!(context.name()?, "softcuda device");
        assert_eq!(context.compute_capability()?, (9, 0));
        assert_ne!(context.uuid()?.bytes, CudaContext::new(2)?.uuid()?.bytes);
        assert!(context.mem_get_info()?.0 <= context.total_mem()?);
        let unified = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        assert_eq!(context.attribute(unified)?, 1);
        assert!(CudaContext::new(8).is_err());
        context.synchronize()
    });
}

#[test]
fn copies_there_and_back() {
    in_children("copies_there_and_back", || {
        let context = CudaContext::new(0)?;
        let stream = context.new_stream()?;
        // Above and below the size that is staged.
        for elements in [1usize, 100, 1 << 20] {
            let data: Vec<f32> = (0..elements).map(|n| n as f32).collect();
            let on_device = stream.clone_htod(&data)?;
            drop(data.clone());
            let mut copy = stream.alloc_zeros::<f32>(elements)?;
            assert!(stream.clone_dtoh(&copy)?.iter().all(|x| *x == 0.0));
            stream.memcpy_dtod(&on_device, &mut copy)?;
            assert_eq!(stream.clone_dtoh(&copy)?, data);
            stream.memset_zeros(&mut copy.slice_mut(elements / 2..))?;
            let seen = stream.clone_dtoh(&copy)?;
            assert_eq!(seen[..elements / 2], data[..elements / 2]);
            assert!(seen[elements / 2..].iter().all(|x| *x == 0.0));
        }
        Ok(())
    });
}

#[test]
fn streams_that_wait_for_each_other() {
    in_children("streams_that_wait_for_each_other", || {
        let context = CudaContext::new(0)?;
        let (first, second) = (context.new_stream()?, context.default_stream());
        let mut data = first.alloc_zeros::<u8>(4096)?;
        for round in 1..20u8 {
            first.memcpy_htod(&[round; 4096], &mut data)?;
            second.join(&first)?;
            assert_eq!(second.clone_dtoh(&data)?, [round; 4096]);
            first.join(&second)?;
        }
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let (start, end) = (first.record_event(flags)?, second.record_event(flags)?);
        end.synchronize()?;
        start.synchronize()?;
        assert!(start.is_complete() && end.is_complete());
        assert!(start.elapsed_ms(&end)?.is_finite());
        Ok(())
    });
}

#[test]
fn pinned_memory_and_two_devices() {
    in_children("pinned_memory_and_two_devices", || {
        let (here, there) = (CudaContext::new(0)?, CudaContext::new(1)?);
        // SAFETY: filled before it is read.
        let mut pinned = unsafe { here.alloc_pinned::<u32>(1000)? };
        pinned.as_mut_slice()?.fill(17);
        let on_device = here.default_stream().clone_htod(&pinned)?;
        here.default_stream().synchronize()?;
        let stream = there.new_stream()?;
        let mut copy = stream.alloc_zeros::<u32>(1000)?;
        stream.memcpy_dtod(&on_device, &mut copy)?;
        assert_eq!(stream.clone_dtoh(&copy)?, [17; 1000]);
        Ok(())
    });
}
