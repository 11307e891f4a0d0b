//! A fake libcuda: opening a GPU, its memory, and the driver's checkpoint calls.
//!
//! The driver's state is a directory that `MUSTER_FAKE_CUDA` names. Each process that has opened the
//! GPU has a file there, named after its pid, with its state and its bytes. So one process can park
//! another, as with a real driver. `MUSTER_FAKE_CUDA_FAIL`, or a file `fail` in that directory, lets
//! calls fail: `NAME=CODE`, separated by commas. The code `hang` makes a call wait for ever.
//! `cuCheckpointProcessRestore=999` is an example.
//!
//! As with a real driver, a process that was forked after `cuInit` gets an error from every call. A
//! process that is parked holds no memory. Signatures and codes are those of the CUDA driver API,
//! <https://docs.nvidia.com/cuda/cuda-driver-api/>. Nothing here was measured on a real GPU.

#![allow(
    unsafe_code,
    unreachable_pub,
    non_snake_case,
    reason = "the functions are the driver's, with its names and contracts"
)]

use std::{
    ffi::{c_int, c_uint, c_void},
    fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

/// The directory with the driver's state.
pub const STATE: &str = "MUSTER_FAKE_CUDA";
/// Which calls fail.
pub const FAIL: &str = "MUSTER_FAKE_CUDA_FAIL";
/// What a context takes: as much as one with loaded kernels and NCCL on an H200.
pub const CONTEXT: u64 = 370 << 20;
/// The memory of the only GPU.
pub const TOTAL: u64 = 8 << 30;

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const ILLEGAL_STATE: c_int = 401;

/// `CUprocessState`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running = 0,
    Locked = 1,
    Checkpointed = 2,
}

/// The process that called `cuInit`. 0: none did.
static INITIALISED_BY: AtomicU32 = AtomicU32::new(0);

fn folder() -> Option<PathBuf> {
    std::env::var_os(STATE)
        .map(PathBuf::from)
        .filter(|dir| dir.is_dir())
}

/// The state of a process that has opened the GPU. None: it has not.
fn of(pid: u32) -> Option<(State, u64)> {
    let text = fs::read_to_string(folder()?.join(pid.to_string())).ok()?;
    let (state, bytes) = text.split_once(' ')?;
    let state = match state {
        "0" => State::Running,
        "1" => State::Locked,
        _ => State::Checkpointed,
    };
    Some((state, bytes.parse().ok()?))
}

fn set(pid: u32, state: State, bytes: u64) -> c_int {
    let written = folder().map(|dir| {
        fs::write(
            dir.join(pid.to_string()),
            format!("{} {bytes}", state as u8),
        )
    });
    match written {
        Some(Ok(())) => SUCCESS,
        _ => NO_DEVICE,
    }
}

/// The code with which a call fails by order. None: it does not.
fn ordered(name: &str) -> Option<c_int> {
    let by_file = || fs::read_to_string(folder()?.join("fail")).ok();
    let orders = std::env::var(FAIL)
        .ok()
        .or_else(by_file)
        .unwrap_or_default();
    let (_, code) = orders
        .split(',')
        .filter_map(|order| order.split_once('='))
        .find(|(call, _)| *call == name)?;
    if code == "hang" {
        loop {
            thread::park();
        }
    }
    Some(code.parse().unwrap_or(INVALID_VALUE))
}

/// Whether this call may go on.
fn begin(name: &str) -> Result<(), c_int> {
    if let Some(code) = ordered(name) {
        return Err(code);
    }
    match INITIALISED_BY.load(Ordering::Relaxed) {
        pid if pid == process::id() => Ok(()),
        _ => Err(NOT_INITIALIZED),
    }
}

fn answer(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|code| code)
}

/// Moves another process from one state into the next.
fn move_on(name: &str, pid: c_int, from: State, to: State) -> c_int {
    answer(begin(name).and_then(|()| {
        let pid = u32::try_from(pid).map_err(|_| INVALID_VALUE)?;
        match of(pid) {
            None => Err(INVALID_VALUE),
            Some((state, _)) if state != from => Err(ILLEGAL_STATE),
            Some((_, bytes)) => Ok(set(pid, to, bytes)),
        }
    }))
}

fn free() -> u64 {
    let all = folder().and_then(|dir| fs::read_dir(dir).ok());
    let pids = all
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let held = pids
        .filter(|pid: &u32| fs::metadata(format!("/proc/{pid}")).is_ok())
        .filter_map(of)
        .filter(|(state, _)| *state != State::Checkpointed)
        .map(|(_, bytes)| bytes);
    TOTAL.saturating_sub(held.sum())
}

/// Writes an answer through a caller's pointer.
fn give<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller passes a pointer to a value of this type, as the driver's header says.
        unsafe { to.write(value) };
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    if let Some(code) = ordered("cuInit") {
        return code;
    }
    if folder().is_none() {
        return NO_DEVICE;
    }
    let me = process::id();
    match INITIALISED_BY.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed) {
        Err(by) if by != me => NOT_INITIALIZED,
        _ => SUCCESS,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    give(version, 13_000);
    ordered("cuDriverGetVersion").unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    answer(begin("cuDeviceGetCount").map(|()| {
        give(count, 1);
        SUCCESS
    }))
}

/// There are as many names for the one GPU as a caller wants, so that a node's ranks can have one each.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    answer(begin("cuDeviceGet").and_then(|()| {
        if ordinal < 0 {
            return Err(INVALID_DEVICE);
        }
        give(device, ordinal);
        Ok(SUCCESS)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) -> c_int {
    answer(begin("cuDevicePrimaryCtxRetain").and_then(|()| {
        if free() < CONTEXT {
            return Err(OUT_OF_MEMORY);
        }
        give(context, std::ptr::dangling_mut());
        Ok(set(process::id(), State::Running, CONTEXT))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> c_int {
    answer(begin("cuMemAlloc_v2").and_then(|()| {
        let (state, held) = of(process::id()).ok_or(NOT_INITIALIZED)?;
        if state != State::Running {
            return Err(ILLEGAL_STATE);
        }
        if free() < bytes as u64 {
            return Err(OUT_OF_MEMORY);
        }
        give(pointer, 1 << 40);
        Ok(set(process::id(), state, held + bytes as u64))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free_bytes: *mut usize, total: *mut usize) -> c_int {
    answer(begin("cuMemGetInfo_v2").map(|()| {
        give(free_bytes, free() as usize);
        give(total, TOTAL as usize);
        SUCCESS
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessLock(pid: c_int, _args: *mut c_void) -> c_int {
    move_on(
        "cuCheckpointProcessLock",
        pid,
        State::Running,
        State::Locked,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessCheckpoint(pid: c_int, _args: *mut c_void) -> c_int {
    move_on(
        "cuCheckpointProcessCheckpoint",
        pid,
        State::Locked,
        State::Checkpointed,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessRestore(pid: c_int, _args: *mut c_void) -> c_int {
    let needed = u32::try_from(pid).ok().and_then(of);
    if needed.is_some_and(|(_, bytes)| free() < bytes) {
        return OUT_OF_MEMORY;
    }
    move_on(
        "cuCheckpointProcessRestore",
        pid,
        State::Checkpointed,
        State::Locked,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessUnlock(pid: c_int, _args: *mut c_void) -> c_int {
    move_on(
        "cuCheckpointProcessUnlock",
        pid,
        State::Locked,
        State::Running,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessGetState(pid: c_int, state: *mut c_int) -> c_int {
    answer(begin("cuCheckpointProcessGetState").and_then(|()| {
        let (found, _) = u32::try_from(pid).ok().and_then(of).ok_or(INVALID_VALUE)?;
        give(state, found as c_int);
        Ok(SUCCESS)
    }))
}
