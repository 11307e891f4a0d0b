//! The C functions. They behave like the real ones where a client could notice: two-call sizes,
//! return codes, per-link scope ids, argument versions.
#![allow(
    unsafe_code,
    unreachable_pub,
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "the functions are NVML's, with NVML's names and contracts"
)]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    ptr,
};

use nvml_wrapper_sys::bindings::*;

use crate::{
    hardware::{Gpu, MigInstance},
    state::{State, with},
};

mod counters;
mod events;
mod links;

pub(crate) type Code = nvmlReturn_t;
pub(crate) const OK: Code = 0;
pub(crate) const INVALID: Code = 2;
pub(crate) const NOT_SUPPORTED: Code = 3;
pub(crate) const NOT_FOUND: Code = 6;
pub(crate) const TOO_SMALL: Code = 7;
pub(crate) const LOST: Code = 15;
pub(crate) const VERSION_MISMATCH: Code = 25;

/// The file this code was loaded from.
pub(crate) fn own_path() -> Option<&'static CStr> {
    // SAFETY: dladdr fills the structure it is given, and its strings live as long as the library.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let here = own_path as *const c_void;
        let known = libc::dladdr(here, &raw mut found) != 0 && !found.dli_fname.is_null();
        known.then(|| CStr::from_ptr(found.dli_fname))
    }
}

/// Handles are numbers: index + 1 for a GPU, and the instance + 1 above that.
fn handle(gpu: usize, instance: Option<usize>) -> nvmlDevice_t {
    ((gpu + 1) | instance.map_or(0, |i| (i + 1) << 16)) as nvmlDevice_t
}

fn parts(device: nvmlDevice_t) -> (usize, Option<usize>) {
    let number = device as usize;
    (
        (number & 0xffff).wrapping_sub(1),
        (number >> 16).checked_sub(1),
    )
}

/// Answers about a GPU, or returns why it cannot.
pub(crate) fn with_gpu(
    device: nvmlDevice_t,
    answer: impl FnOnce(&mut State, usize) -> Code,
) -> Code {
    with(|state| {
        let (at, _) = parts(device);
        match state.hardware.gpus.get(at) {
            None => INVALID,
            Some(gpu) => match trouble(gpu) {
                OK => answer(state, at),
                code => code,
            },
        }
    })
}

fn trouble(gpu: &Gpu) -> Code {
    if gpu.lost {
        LOST
    } else {
        gpu.error.unwrap_or(OK)
    }
}

fn instance(gpu: &Gpu, device: nvmlDevice_t) -> Option<&MigInstance> {
    gpu.mig.as_ref()?.instances.get(parts(device).1?)
}

/// Writes a string and its NUL, or returns that there is no room.
pub(crate) unsafe fn put_text(text: &str, to: *mut c_char, room: c_uint) -> Code {
    if to.is_null() {
        return INVALID;
    }
    if text.len() + 1 > room as usize {
        return TOO_SMALL;
    }
    // SAFETY: the caller vouches for `room` bytes at `to`, and the text with its NUL fits.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        to.add(text.len()).write(0);
    }
    OK
}

/// Writes a value. `None` is "not supported".
pub(crate) unsafe fn put<T>(value: Option<T>, to: *mut T) -> Code {
    match value {
        _ if to.is_null() => INVALID,
        None => NOT_SUPPORTED,
        Some(value) => {
            // SAFETY: the caller vouches for a place for one `T`.
            unsafe { to.write(value) };
            OK
        }
    }
}

/// The memory that a driver keeps for itself. The older of two calls counts it as used.
const RESERVED: u64 = 551 << 20;

/// Functions that answer with one number or flag.
macro_rules! numbers {
    ($($name:ident: $type:ty = |$gpu:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, to: *mut $type) -> Code {
            // SAFETY: NVML's contract: `to` is a place for the answer.
            with_gpu(device, |state, at| unsafe { let $gpu = &state.hardware.gpus[at]; put($value, to) })
        }
    )*};
}
pub(crate) use numbers;

/// Functions that answer with a string.
macro_rules! texts {
    ($($name:ident = |$gpu:ident, $instance:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, to: *mut c_char, room: c_uint) -> Code {
            with_gpu(device, |state, at| {
                let $gpu = &state.hardware.gpus[at];
                let $instance = instance($gpu, device);
                let text: Option<&str> = $value;
                // SAFETY: NVML's contract: `room` bytes at `to`.
                text.map_or(NOT_SUPPORTED, |text| unsafe { put_text(text, to, room) })
            })
        }
    )*};
}

numbers! {
    nvmlDeviceGetMinorNumber: c_uint = |gpu| Some(gpu.minor);
    nvmlDeviceGetModuleId: c_uint = |gpu| gpu.module;
    nvmlDeviceGetNumaNodeId: c_uint = |gpu| gpu.numa;
    nvmlDeviceGetComputeMode: c_uint = |gpu| Some(gpu.compute_mode);
    nvmlDeviceGetPersistenceMode: c_uint = |gpu| Some(u32::from(gpu.persistence));
    nvmlDeviceGetMaxMigDeviceCount: c_uint = |gpu| Some(if gpu.mig.is_some() { 7 } else { 0 });
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = |gpu| Some(gpu.pcie.generation);
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = |gpu| Some(gpu.pcie.generation_max);
    nvmlDeviceGetCurrPcieLinkWidth: c_uint = |gpu| Some(gpu.pcie.width);
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = |gpu| Some(gpu.pcie.width_max);
    nvmlDeviceGetUtilizationRates: nvmlUtilization_t = |gpu| Some(nvmlUtilization_t { gpu: gpu.utilization, memory: gpu.utilization / 2 });
    nvmlDeviceGetDisplayActive: c_uint = |gpu| Some(u32::from(gpu.display));
    nvmlDeviceGetMemoryInfo: nvmlMemory_t = |gpu| {
        let used = (gpu.memory_used + RESERVED).min(gpu.memory);
        Some(nvmlMemory_t { total: gpu.memory, free: gpu.memory - used, used })
    };
}

texts! {
    nvmlDeviceGetUUID = |gpu, instance| Some(instance.map_or(gpu.uuid.as_str(), |i| i.uuid.as_str()));
    nvmlDeviceGetName = |gpu, instance| Some(instance.map_or(gpu.name.as_str(), |i| i.name.as_str()));
    nvmlDeviceGetSerial = |gpu, instance| Some(gpu.serial.as_str()).filter(|serial| instance.is_none() && !serial.is_empty());
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Code {
    with(|state| state.hardware.init_error.unwrap_or(OK))
}

/// The call of old, which torch makes to count GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> Code {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Code {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: c_uint) -> Code {
    // SAFETY: NVML's contract: `room` bytes at `to`.
    with(|state| unsafe { put_text(&state.hardware.driver, to, room) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(to: *mut c_char, room: c_uint) -> Code {
    // SAFETY: NVML's contract: `room` bytes at `to`.
    with(|state| unsafe { put_text(&state.hardware.nvml, to, room) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with(|state| unsafe { put(Some(state.hardware.cuda), to) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetProcessName(
    pid: c_uint,
    to: *mut c_char,
    room: c_uint,
) -> Code {
    // SAFETY: NVML's contract: `room` bytes at `to`.
    with(|_| unsafe { put_text(&format!("python{pid}"), to, room) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with(|state| unsafe { put(Some(state.hardware.gpus.len() as c_uint), to) })
}

/// A lost GPU is counted, but its handle is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    to: *mut nvmlDevice_t,
) -> Code {
    with(|state| match state.hardware.gpus.get(index as usize) {
        None => INVALID,
        Some(gpu) => match trouble(gpu) {
            // SAFETY: NVML's contract: a place for the answer.
            OK => unsafe { put(Some(handle(index as usize, None)), to) },
            code => code,
        },
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    to: *mut nvmlDevice_t,
) -> Code {
    with_gpu(device, |state, at| match &state.hardware.gpus[at].mig {
        None => NOT_SUPPORTED,
        Some(mig) if mig.instances.get(index as usize).is_none() => NOT_FOUND,
        // SAFETY: NVML's contract: a place for the answer.
        Some(_) => unsafe { put(Some(handle(at, Some(index as usize))), to) },
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, to: *mut c_uint) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_gpu(device, |state, at| unsafe {
        put(
            instance(&state.hardware.gpus[at], device).map(|i| i.gpu_instance),
            to,
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(
    device: nvmlDevice_t,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_gpu(device, |state, at| unsafe {
        put(
            instance(&state.hardware.gpus[at], device).map(|i| i.compute_instance),
            to,
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Code {
    with_gpu(device, |state, at| {
        let mig = state.hardware.gpus[at].mig.as_ref();
        // SAFETY: NVML's contract: two places for the answers.
        unsafe {
            match put(mig.map(|mig| u32::from(mig.current)), current) {
                OK => put(mig.map(|mig| u32::from(mig.pending)), pending),
                code => code,
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    to: *mut nvmlMemory_v2_t,
) -> Code {
    with_gpu(device, |state, at| {
        let gpu = &state.hardware.gpus[at];
        let total = instance(gpu, device).map_or(gpu.memory, |i| i.memory);
        let reserved = RESERVED.min(total);
        let used = gpu.memory_used.min(total - reserved);
        let answer = nvmlMemory_v2_t {
            version: 2,
            total,
            reserved,
            free: total - reserved - used,
            used,
        };
        // SAFETY: NVML's contract: a place for the answer.
        unsafe { put(Some(answer), to) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> Code {
    with_gpu(device, |state, at| {
        let (high, low) = state.hardware.gpus[at].compute_capability;
        // SAFETY: NVML's contract: two places for the answers.
        unsafe {
            match put(Some(high), major) {
                OK => put(Some(low), minor),
                code => code,
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    to: *mut nvmlPciInfo_t,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_gpu(device, |state, at| unsafe {
        put(Some(pci(&state.hardware.gpus[at].pci, 0x2330_10de)), to)
    })
}

/// NVML's structure for an address, which has both spellings.
pub(crate) fn pci(address: &str, device: u32) -> nvmlPciInfo_t {
    // SAFETY: plain numbers and bytes, for which zero is a value.
    let mut answer: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    let legacy = address.get(4..).unwrap_or(address);
    let fill = |to: &mut [c_char], text: &str| {
        let room = to.len() - 1;
        to.iter_mut()
            .zip(text.bytes().take(room))
            .for_each(|(to, byte)| *to = byte as c_char);
    };
    fill(&mut answer.busId, address);
    fill(&mut answer.busIdLegacy, legacy);
    answer.pciDeviceId = device;
    answer
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvmlProcessInfo_t,
) -> Code {
    with_gpu(device, |state, at| {
        let processes = &state.hardware.gpus[at].processes;
        // SAFETY: NVML's contract: `count` says how many fit at `to`, and is told how many there
        // are.
        unsafe {
            let room = count.read() as usize;
            count.write(processes.len() as c_uint);
            if processes.len() > room {
                return TOO_SMALL;
            }
            for (i, (pid, memory)) in processes.iter().enumerate() {
                let all = c_uint::MAX;
                to.add(i).write(nvmlProcessInfo_t {
                    pid: *pid,
                    usedGpuMemory: *memory as c_ulonglong,
                    gpuInstanceId: all,
                    computeInstanceId: all,
                });
            }
        }
        OK
    })
}
