//! NVLink.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::*;

use super::{Code, INVALID, NOT_SUPPORTED, pci, put, with_gpu};
use crate::hardware::Link;

/// Answers about an existing link. A card without NVLink answers "not supported". A card with NVLink
/// answers "invalid" for a link that it does not have.
fn with_link(device: nvmlDevice_t, link: c_uint, answer: impl FnOnce(&Link) -> Code) -> Code {
    with_gpu(device, |state, at| {
        let links = &state.hardware.gpus[at].links;
        match links.get(link as usize) {
            None if links.is_empty() => NOT_SUPPORTED,
            None => INVALID,
            Some(link) => answer(link),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    link: c_uint,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_link(device, link, |link| unsafe {
        put(Some(u32::from(link.active)), to)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkVersion(
    device: nvmlDevice_t,
    link: c_uint,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_link(device, link, |_| unsafe { put(Some(4), to) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkCapability(
    device: nvmlDevice_t,
    link: c_uint,
    _capability: c_uint,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_link(device, link, |_| unsafe { put(Some(1), to) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: nvmlDevice_t,
    link: c_uint,
    to: *mut nvmlPciInfo_t,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_link(device, link, |link| unsafe {
        put(
            link.remote
                .as_ref()
                .filter(|_| link.active)
                .map(|remote| pci(remote, 0)),
            to,
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: nvmlDevice_t,
    link: c_uint,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer. 0 is a GPU, 2 a switch.
    with_link(device, link, |link| unsafe {
        put(
            Some(if link.to_switch { 2 } else { 0 }).filter(|_| link.active),
            to,
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: nvmlDevice_t,
    link: c_uint,
    counter: c_uint,
    to: *mut c_ulonglong,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer. 1 recovery, 2 CRC flit.
    with_link(device, link, |link| unsafe {
        put(Some(if counter == 2 { link.crc_errors } else { 0 }), to)
    })
}
