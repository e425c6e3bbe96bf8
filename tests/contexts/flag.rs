//! The words in host memory by which a rank's host and kernels tell each other to leave.

use nccl::device::{Context, HostFlag};

use crate::common::launch::{self, Job};

/// The first report stays, the host's as a kernel's.
#[test]
fn a_first_report_stays() {
    if launch::child().is_some() {
        let context = Context::retain(0).expect("a device");
        let flag = HostFlag::create(&context).expect("memory");
        assert_eq!(flag.error(), [0; HostFlag::ERROR_WORDS]);
        flag.report(4, 1, 17);
        assert_eq!(flag.error()[..5], [4, 1, 17, 0, 0]);
        flag.report(3, 2, 18);
        assert_eq!(flag.error()[..5], [4, 1, 17, 0, 0]);

        // A kernel that has claimed the report, and then completes it.
        let flag = HostFlag::create(&context).expect("memory");
        // SAFETY: on the software device, host memory has the same address for kernels; nobody else uses it.
        let words = unsafe {
            std::slice::from_raw_parts_mut((flag.address() + HostFlag::ERROR_OFFSET) as *mut u32, HostFlag::ERROR_WORDS)
        };
        words[HostFlag::ERROR_CLAIM] = 3;
        flag.report(4, 1, 17);
        assert_eq!(flag.error(), [0; HostFlag::ERROR_WORDS], "a kernel is about to say what it was");
        words[..5].copy_from_slice(&[3, 2, 18, 7, 8]);
        assert_eq!(flag.error(), [3, 2, 18, 7, 8, 0, 0, 3]);

        // A kernel on a GPU that found the claim free at the same time: it writes no word of the host's report.
        let flag = HostFlag::create(&context).expect("memory");
        flag.report(4, 1, 17);
        // SAFETY: as above.
        unsafe { *((flag.address() + HostFlag::ERROR_OFFSET) as *mut u32).add(1) = 99 };
        assert_eq!(flag.error()[..3], [4, 1, 17]);
        return;
    }
    Job::this_test("flag::a_first_report_stays", 1).run().assert_ok();
}
