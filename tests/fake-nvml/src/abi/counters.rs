//! Counters, flags and field values: the facts from which health is judged.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::*;

use super::{
    Code, INVALID, NOT_SUPPORTED, OK, TOO_SMALL, VERSION_MISMATCH, numbers, put, with_gpu,
};
use crate::hardware::{Ecc, Fabric, Gpu};

numbers! {
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong = |gpu| Some(gpu.throttle);
    nvmlDeviceGetPowerUsage: c_uint = |gpu| Some(gpu.power);
    nvmlDeviceGetEnforcedPowerLimit: c_uint = |gpu| Some(gpu.power_limit);
    nvmlDeviceGetTotalEnergyConsumption: c_ulonglong = |gpu| Some(gpu.energy());
    nvmlDeviceGetPcieReplayCounter: c_uint = |gpu| Some(gpu.pcie.replays);
    nvmlDeviceGetRetiredPagesPendingStatus: c_uint = |gpu| gpu.retired.map(|(_, pending)| u32::from(pending));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEccMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Code {
    with_gpu(device, |state, at| {
        let on = state.hardware.gpus[at].ecc.as_ref().map(|_| 1);
        // SAFETY: NVML's contract: two places for the answers.
        unsafe {
            match put(on, current) {
                OK => put(on, pending),
                code => code,
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    kind: c_uint,
    _counter: c_uint,
    to: *mut c_ulonglong,
) -> Code {
    with_gpu(device, |state, at| {
        let ecc = state.hardware.gpus[at].ecc.as_ref();
        // SAFETY: NVML's contract: a place for the answer.
        unsafe {
            put(
                ecc.map(|ecc| {
                    if kind == 1 {
                        ecc.uncorrected
                    } else {
                        ecc.corrected + ecc.sram_corrected
                    }
                }),
                to,
            )
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: nvmlDevice_t,
    kind: c_uint,
    _counter: c_uint,
    place: c_uint,
    to: *mut c_ulonglong,
) -> Code {
    const DRAM: c_uint = 2;
    const SRAM: c_uint = 7;
    with_gpu(device, |state, at| {
        let counted = |ecc: &Ecc| match (kind, place) {
            (0, DRAM) => Some(ecc.corrected),
            (0, SRAM) => Some(ecc.sram_corrected),
            (1, DRAM) => Some(ecc.uncorrected),
            (1, SRAM) => Some(ecc.sram_uncorrected),
            _ => None,
        };
        // SAFETY: NVML's contract: a place for the answer.
        unsafe { put(state.hardware.gpus[at].ecc.as_ref().and_then(counted), to) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSramEccErrorStatus(
    device: nvmlDevice_t,
    to: *mut nvmlEccSramErrorStatus_t,
) -> Code {
    with_gpu(device, |state, at| {
        let Some(ecc) = &state.hardware.gpus[at].ecc else {
            return NOT_SUPPORTED;
        };
        // SAFETY: NVML's contract: the structure, with its version filled in.
        unsafe {
            if to.is_null() {
                return INVALID;
            }
            let expected = size_of::<nvmlEccSramErrorStatus_t>() as u32 | 1 << 24;
            if (*to).version != expected {
                return VERSION_MISMATCH;
            }
            (*to).volatileUncSecDed = ecc.sram_uncorrected;
            (*to).bThresholdExceeded = u32::from(ecc.sram_threshold);
        }
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failure: *mut c_uint,
) -> Code {
    with_gpu(device, |state, at| {
        let Some(remap) = &state.hardware.gpus[at].remap else {
            return NOT_SUPPORTED;
        };
        let answers = [
            remap.corrected,
            remap.uncorrected,
            u32::from(remap.pending),
            u32::from(remap.failure),
        ];
        // SAFETY: NVML's contract: four places for the answers.
        let codes = [corrected, uncorrected, pending, failure]
            .into_iter()
            .zip(answers)
            .map(|(to, value)| unsafe { put(Some(value), to) });
        codes.max().unwrap_or(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    _cause: c_uint,
    count: *mut c_uint,
    _addresses: *mut c_ulonglong,
    _timestamps: *mut c_ulonglong,
) -> Code {
    with_gpu(device, |state, at| {
        let Some((pages, _)) = state.hardware.gpus[at].retired else {
            return NOT_SUPPORTED;
        };
        // SAFETY: NVML's contract: a place for the number; only the number is ever asked for here.
        unsafe {
            let room = count.read();
            count.write(pages);
            if pages > room { TOO_SMALL } else { OK }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    _sensor: c_uint,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_gpu(device, |state, at| unsafe {
        put(Some(state.hardware.gpus[at].temperature), to)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperatureThreshold(
    device: nvmlDevice_t,
    kind: c_uint,
    to: *mut c_uint,
) -> Code {
    const MEMORY_MAX: c_uint = 2;
    with_gpu(device, |state, at| {
        let most = state.hardware.gpus[at]
            .memory_temperature
            .filter(|_| kind == MEMORY_MAX)
            .map(|(_, most)| most);
        // SAFETY: NVML's contract: a place for the answer.
        unsafe { put(most, to) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    _kind: c_uint,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_gpu(device, |state, at| unsafe {
        put(Some(state.hardware.gpus[at].clock.0), to)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: nvmlDevice_t,
    _kind: c_uint,
    to: *mut c_uint,
) -> Code {
    // SAFETY: NVML's contract: a place for the answer.
    with_gpu(device, |state, at| unsafe {
        put(Some(state.hardware.gpus[at].clock.1), to)
    })
}

/// The structure has grown over time. The caller says which version it passes, by size and number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    to: *mut nvmlGpuFabricInfoV_t,
) -> Code {
    with_gpu(device, |state, at| {
        let highest = state.hardware.fabric_version;
        let Some(fabric) = &state.hardware.gpus[at].fabric else {
            return NOT_SUPPORTED;
        };
        // SAFETY: NVML's contract: a structure of the version it names; fields beyond that are not
        // touched.
        unsafe {
            if to.is_null() {
                return INVALID;
            }
            let number = (*to).version >> 24;
            let size = if number >= 3 {
                size_of::<nvmlGpuFabricInfo_v3_t>()
            } else {
                size_of::<nvmlGpuFabricInfo_v2_t>()
            };
            if number < 2 || number > highest || (*to).version & 0x00ff_ffff != size as u32 {
                return VERSION_MISMATCH;
            }
            fill(fabric, to, number);
        }
        OK
    })
}

/// # Safety
/// `to` is a structure of version `number`.
unsafe fn fill(fabric: &Fabric, to: *mut nvmlGpuFabricInfoV_t, number: u32) {
    // SAFETY: as the caller vouches.
    unsafe {
        (*to).clusterUuid = fabric.cluster;
        (*to).status = fabric.status;
        (*to).cliqueId = fabric.clique;
        (*to).state = fabric.state;
        (*to).healthMask = fabric.health_mask;
        if number >= 3 {
            (*to).healthSummary = fabric.health;
        }
    }
}

/// Each unknown field is answered with "not supported". The call itself succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> Code {
    with_gpu(device, |state, at| {
        let gpu = &state.hardware.gpus[at];
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: NVML's contract: `count` entries at `values`.
            let value = unsafe { &mut *values.add(i) };
            match field(gpu, value.fieldId, value.scopeId as usize) {
                None => value.nvmlReturn = NOT_SUPPORTED,
                Some(answer) => {
                    value.nvmlReturn = OK;
                    value.valueType = 3;
                    value.value.ullVal = answer;
                }
            }
        }
        OK
    })
}

fn field(gpu: &Gpu, id: u32, scope: usize) -> Option<u64> {
    let link = || gpu.links.get(scope);
    match id {
        82 => gpu.memory_temperature.map(|(now, _)| u64::from(now)),
        94 => Some(u64::from(gpu.pcie.replays)),
        142 => gpu.remap.as_ref().map(|remap| u64::from(remap.corrected)),
        143 => gpu.remap.as_ref().map(|remap| u64::from(remap.uncorrected)),
        144 => gpu.remap.as_ref().map(|remap| u64::from(remap.pending)),
        145 => gpu.remap.as_ref().map(|remap| u64::from(remap.failure)),
        161 | 162 => link().map(|_| 0),
        163 => link().map(|link| link.crc_errors),
        165 => link().map(|link| u64::from(link.active)),
        214 => link().map(|link| link.recovery_failures),
        230 => gpu.recovery.map(u64::from),
        _ => None,
    }
}
