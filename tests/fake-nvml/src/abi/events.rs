//! The event set. The whole library has one, and it delivers every event that comes after it was
//! made.

use std::{
    ffi::{c_uint, c_ulonglong},
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::*;

use super::{Code, LOST, OK, handle, numbers, put, with_gpu};
use crate::state::{LOOK, with};

const TIMEOUT: Code = 10;
/// XID, single and double bit errors, recovery action, GPU unavailable.
const SUPPORTED: c_ulonglong = 0x1 | 0x2 | 0x8 | 0x4000 | 0x8000;

numbers! {
    nvmlDeviceGetSupportedEventTypes: c_ulonglong = |_gpu| Some(SUPPORTED);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(to: *mut nvmlEventSet_t) -> Code {
    with(|state| {
        state.delivered = state
            .hardware
            .events
            .last()
            .map_or(0, |event| event.sequence);
        // SAFETY: NVML's contract: a place for the answer.
        unsafe { put(Some(0x5e7_usize as nvmlEventSet_t), to) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: nvmlEventSet_t) -> Code {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    _types: c_ulonglong,
    _set: nvmlEventSet_t,
) -> Code {
    with_gpu(device, |_, _| OK)
}

/// Blocks for the requested time, because a client that gets a timeout at once spins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    _set: nvmlEventSet_t,
    to: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> Code {
    let until = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    loop {
        let code = with(|state| {
            if !state.hardware.gpus.is_empty() && state.hardware.gpus.iter().all(|gpu| gpu.lost) {
                return Some(LOST);
            }
            let event = state
                .hardware
                .events
                .iter()
                .find(|event| event.sequence > state.delivered)?;
            state.delivered = event.sequence;
            let all = c_uint::MAX;
            let answer = nvmlEventData_t {
                device: handle(event.gpu, None),
                eventType: event.kind,
                eventData: event.value,
                gpuInstanceId: all,
                computeInstanceId: all,
            };
            // SAFETY: NVML's contract: a place for the answer.
            Some(unsafe { put(Some(answer), to) })
        });
        match code {
            Some(code) => return code,
            None if Instant::now() >= until => return TIMEOUT,
            None => std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now()))),
        }
    }
}
