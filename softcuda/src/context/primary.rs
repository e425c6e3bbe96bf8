//! Primary contexts.

use super::{Context, Nature, State, check_flags};
use crate::error::{CudaError, Outcome};
use parking_lot::Mutex;

#[derive(Default)]
struct Retained {
    context: Option<&'static Context>,
    references: u64,
    flags: u32,
}

/// A device's primary context: made at the first retain, its handle stays for good. It lives from a retain to a reset,
/// or to the release that nobody is left after; a retain after that gives it a new life, with another id and nothing in
/// it.
#[derive(Default)]
pub struct Primary {
    state: Mutex<Retained>,
}

impl Primary {
    /// `cuDevicePrimaryCtxRetain`
    pub fn retain(&self, driver: &'static State, device: usize) -> Outcome<&'static Context> {
        driver.check(device)?;
        let mut state = self.state.lock();
        let context = match state.context {
            Some(context) => context,
            None => Context::create(driver, device, state.flags, Nature::Primary)?,
        };
        if !context.is_active() {
            context.begin(driver, state.flags);
        }
        state.context = Some(context);
        state.references += 1;
        Ok(context)
    }

    /// `cuDevicePrimaryCtxRelease`
    pub fn release(&self, driver: &'static State) -> Outcome {
        let mut state = self.state.lock();
        let Some(context) = state.context.filter(|_| state.references > 0) else {
            return Err(CudaError::INVALID_CONTEXT);
        };
        driver.check(context.device())?;
        state.references -= 1;
        if state.references == 0 { end_primary(driver, context) } else { Ok(()) }
    }

    /// `cuDevicePrimaryCtxReset`: everything goes, whoever retains it. Who does so has still to release it.
    pub fn reset(&self, driver: &'static State) -> Outcome {
        let mut state = self.state.lock();
        state.flags = 0;
        state.context.map_or(Ok(()), |context| end_primary(driver, context))
    }

    /// Flags, and whether the context is active.
    pub fn state(&self) -> (u32, bool) {
        let state = self.state.lock();
        (state.flags, state.context.is_some_and(Context::is_active))
    }

    /// `cuDevicePrimaryCtxSetFlags`
    pub fn set_flags(&self, flags: u32) -> Outcome {
        check_flags(flags)?;
        let mut state = self.state.lock();
        state.flags = flags;
        if let Some(context) = state.context {
            context.settings.lock().flags = flags;
        }
        Ok(())
    }
}

/// Ends a primary context's life, unless it has ended already.
fn end_primary(driver: &'static State, context: &'static Context) -> Outcome {
    if context.is_active() {
        context.end(driver)?;
        driver.count_primary_end();
    }
    Ok(())
}
