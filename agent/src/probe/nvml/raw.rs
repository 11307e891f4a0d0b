//! The calls into libnvidia-ml and nothing else. Only this module and `raw/` call it.
//!
//! The wrapper crate loads the library. The functions are called directly, because the wrapper
//! lacks some (remapped rows, fabric, module id), cannot pass a link to a field, cuts 64-bit values
//! and drops event bits that it does not know. A symbol that the driver lacks gives the answer
//! [`Code::MISSING`].
#![allow(unsafe_code, reason = "NVML is a C library")]

use std::{
    ffi::{CStr, OsStr, c_char, c_uint, c_ulonglong},
    path::Path,
};

use nvml_wrapper::{Nvml, error::NvmlError};
use nvml_wrapper_sys::bindings::*;

use super::code::Code;

mod memory;

pub(crate) use memory::Place;

/// Why the library cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// There is no library, so this node has no NVIDIA driver.
    #[error("no libnvidia-ml")]
    Absent(#[source] NvmlError),
    #[error("driver and library versions differ")]
    Mismatch(#[source] NvmlError),
    #[error("open NVML")]
    Refused(#[source] NvmlError),
}

/// A GPU, as the library names it within one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handle(usize);

impl Handle {
    fn raw(self) -> nvmlDevice_t {
        self.0 as nvmlDevice_t
    }
}

type Symbol<F, E> = Result<F, E>;
type Getter<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t;
type Getter2<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T, *mut T) -> nvmlReturn_t;
type TextGetter = unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t;

type ListProcesses =
    unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t;

fn listed(gpu: Handle, call: ListProcesses) -> Result<Vec<(u32, u64)>, Code> {
    /// More processes than ever share a GPU. The others are not listed.
    const ROOM: usize = 128;
    // SAFETY: plain numbers, for which zero is a value.
    let blank: nvmlProcessInfo_t = unsafe { std::mem::zeroed() };
    let (mut found, mut count) = (vec![blank; ROOM], ROOM as c_uint);
    // SAFETY: writes at most `count` entries.
    answered(unsafe { call(gpu.raw(), &raw mut count, found.as_mut_ptr()) })?;
    // All bits set means that the value may not be read, as in some containers.
    let memory = |bytes: u64| if bytes == u64::MAX { 0 } else { bytes };
    Ok(found
        .iter()
        .take(count as usize)
        .map(|process| (process.pid, memory(process.usedGpuMemory)))
        .collect())
}

fn answered(code: nvmlReturn_t) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

fn one<T: Default, E>(symbol: &Symbol<Getter<T>, E>, gpu: Handle) -> Result<T, Code> {
    let Ok(call) = symbol else {
        return Err(Code::MISSING);
    };
    let mut value = T::default();
    // SAFETY: the function writes one `T`. For a stale handle it returns a code.
    answered(unsafe { call(gpu.raw(), &raw mut value) })?;
    Ok(value)
}

fn two<T: Default, E>(symbol: &Symbol<Getter2<T>, E>, gpu: Handle) -> Result<(T, T), Code> {
    let Ok(call) = symbol else {
        return Err(Code::MISSING);
    };
    let (mut first, mut second) = (T::default(), T::default());
    // SAFETY: the function writes two `T`.
    answered(unsafe { call(gpu.raw(), &raw mut first, &raw mut second) })?;
    Ok((first, second))
}

/// Large enough for the longest name or UUID of NVML, which has 96 bytes.
const TEXT: usize = 128;

fn text_of(call: impl FnOnce(*mut c_char, c_uint) -> nvmlReturn_t) -> Result<String, Code> {
    let mut buffer = [0_u8; TEXT];
    answered(call(buffer.as_mut_ptr().cast(), TEXT as c_uint))?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn text<E>(symbol: &Symbol<TextGetter, E>, gpu: Handle) -> Result<String, Code> {
    let Ok(call) = symbol else {
        return Err(Code::MISSING);
    };
    // SAFETY: the function writes at most as many bytes as it is told there are.
    text_of(|to, room| unsafe { call(gpu.raw(), to, room) })
}

/// The `ID` of a field, and the link that it is asked for.
pub(crate) type Field = (u32, u32);

/// An NVML event: its GPU, its kind (a bit), and its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) gpu: Handle,
    pub(crate) kind: u64,
    pub(crate) value: u64,
}

/// The requested event kinds: single and double bit errors, XIDs, GPU unavailable, recovery action
/// changed.
pub(crate) const XID: u64 = 0x8;
const KINDS: u64 = 0x1 | 0x2 | XID | 0x4000 | 0x8000;

pub(crate) struct EventSet(usize);

#[derive(Debug)]
pub(crate) struct Library {
    nvml: Nvml,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $how:ident -> $type:ty = $symbol:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(&self, gpu: Handle) -> Result<$type, Code> {
            $how(&self.nvml.lib().$symbol, gpu)
        }
    )*};
}

impl Library {
    /// Opens the library at `path`, or the one the loader finds.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, OpenError> {
        let opened = match path {
            Some(path) => Nvml::builder().lib_path(OsStr::new(path)).init(),
            None => Nvml::init(),
        };
        match opened {
            Ok(nvml) => Ok(Self { nvml }),
            Err(e @ (NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound)) => {
                Err(OpenError::Absent(e))
            }
            Err(e @ NvmlError::LibRmVersionMismatch) => Err(OpenError::Mismatch(e)),
            Err(e) => Err(OpenError::Refused(e)),
        }
    }

    getters! {
        uuid: text -> String = nvmlDeviceGetUUID;
        name: text -> String = nvmlDeviceGetName;
        serial: text -> String = nvmlDeviceGetSerial;
        minor: one -> u32 = nvmlDeviceGetMinorNumber;
        module: one -> u32 = nvmlDeviceGetModuleId;
        numa_node: one -> u32 = nvmlDeviceGetNumaNodeId;
        compute_mode: one -> u32 = nvmlDeviceGetComputeMode;
        persistence: one -> u32 = nvmlDeviceGetPersistenceMode;
        compute_capability: two -> (i32, i32) = nvmlDeviceGetCudaComputeCapability;
        /// The current and the pending mode.
        mig_mode: two -> (u32, u32) = nvmlDeviceGetMigMode;
        mig_count: one -> u32 = nvmlDeviceGetMaxMigDeviceCount;
        gpu_instance: one -> u32 = nvmlDeviceGetGpuInstanceId;
        compute_instance: one -> u32 = nvmlDeviceGetComputeInstanceId;
        /// A screen, or X in preparation for one, uses memory of this GPU.
        display: one -> u32 = nvmlDeviceGetDisplayActive;
        /// The current and the pending mode.
        ecc_mode: two -> (u32, u32) = nvmlDeviceGetEccMode;
        throttle_reasons: one -> u64 = nvmlDeviceGetCurrentClocksThrottleReasons;
        retired_pending: one -> u32 = nvmlDeviceGetRetiredPagesPendingStatus;
        pcie_generation: one -> u32 = nvmlDeviceGetCurrPcieLinkGeneration;
        pcie_generation_max: one -> u32 = nvmlDeviceGetMaxPcieLinkGeneration;
        pcie_width: one -> u32 = nvmlDeviceGetCurrPcieLinkWidth;
        pcie_width_max: one -> u32 = nvmlDeviceGetMaxPcieLinkWidth;
        pcie_replays: one -> u32 = nvmlDeviceGetPcieReplayCounter;
        /// In millijoules, since the driver was loaded or the GPU was reset. From Volta on.
        energy: one -> u64 = nvmlDeviceGetTotalEnergyConsumption;
    }

    pub(crate) fn driver_version(&self) -> Result<String, Code> {
        let Ok(call) = &self.nvml.lib().nvmlSystemGetDriverVersion else {
            return Err(Code::MISSING);
        };
        // SAFETY: writes at most `room` bytes.
        text_of(|to, room| unsafe { call(to, room) })
    }

    pub(crate) fn nvml_version(&self) -> Result<String, Code> {
        let Ok(call) = &self.nvml.lib().nvmlSystemGetNVMLVersion else {
            return Err(Code::MISSING);
        };
        // SAFETY: writes at most `room` bytes.
        text_of(|to, room| unsafe { call(to, room) })
    }

    /// The number 12080 means 12.8.
    pub(crate) fn cuda_version(&self) -> Result<i32, Code> {
        let Ok(call) = &self.nvml.lib().nvmlSystemGetCudaDriverVersion_v2 else {
            return Err(Code::MISSING);
        };
        let mut version = 0;
        // SAFETY: writes one int.
        answered(unsafe { call(&raw mut version) })?;
        Ok(version)
    }

    pub(crate) fn count(&self) -> Result<u32, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetCount_v2 else {
            return Err(Code::MISSING);
        };
        let mut count = 0;
        // SAFETY: writes one number.
        answered(unsafe { call(&raw mut count) })?;
        Ok(count)
    }

    pub(crate) fn gpu(&self, index: u32) -> Result<Handle, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetHandleByIndex_v2 else {
            return Err(Code::MISSING);
        };
        let mut handle: nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: writes one handle.
        answered(unsafe { call(index, &raw mut handle) })?;
        Ok(Handle(handle as usize))
    }

    pub(crate) fn mig_part(&self, gpu: Handle, index: u32) -> Result<Handle, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetMigDeviceHandleByIndex else {
            return Err(Code::MISSING);
        };
        let mut handle: nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: writes one handle.
        answered(unsafe { call(gpu.raw(), index, &raw mut handle) })?;
        Ok(Handle(handle as usize))
    }

    /// The address in NVML's spelling: `00000000:1B:00.0`.
    pub(crate) fn pci(&self, gpu: Handle) -> Result<String, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetPciInfo_v3 else {
            return Err(Code::MISSING);
        };
        // SAFETY: the structure is plain numbers, for which zero is a value; the function fills it.
        let found = unsafe {
            let mut found: nvmlPciInfo_t = std::mem::zeroed();
            answered(call(gpu.raw(), &raw mut found))?;
            found
        };
        Ok(address(&found))
    }

    /// How busy the GPU is, in percent.
    pub(crate) fn utilization(&self, gpu: Handle) -> Result<u32, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetUtilizationRates else {
            return Err(Code::MISSING);
        };
        let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
        // SAFETY: fills the structure.
        answered(unsafe { call(gpu.raw(), &raw mut rates) })?;
        Ok(rates.gpu)
    }

    /// The highest temperature that the memory may have, in degrees Celsius.
    pub(crate) fn memory_heat_max(&self, gpu: Handle) -> Result<u32, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetTemperatureThreshold else {
            return Err(Code::MISSING);
        };
        let mut degrees = 0;
        // SAFETY: writes one number.
        answered(unsafe {
            call(
                gpu.raw(),
                nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
                &raw mut degrees,
            )
        })?;
        Ok(degrees)
    }

    /// The current clock of the multiprocessors, in MHz.
    pub(crate) fn clock(&self, gpu: Handle) -> Result<u32, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetClockInfo else {
            return Err(Code::MISSING);
        };
        let mut clock = 0;
        // SAFETY: writes one number.
        answered(unsafe { call(gpu.raw(), nvmlClockType_enum_NVML_CLOCK_SM, &raw mut clock) })?;
        Ok(clock)
    }

    pub(crate) fn link_active(&self, gpu: Handle, link: u32) -> Result<bool, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetNvLinkState else {
            return Err(Code::MISSING);
        };
        let mut active = 0;
        // SAFETY: writes one number.
        answered(unsafe { call(gpu.raw(), link, &raw mut active) })?;
        Ok(active != 0)
    }

    pub(crate) fn link_remote(&self, gpu: Handle, link: u32) -> Result<String, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetNvLinkRemotePciInfo_v2 else {
            return Err(Code::MISSING);
        };
        // SAFETY: the structure is plain numbers; the function fills it.
        let found = unsafe {
            let mut found: nvmlPciInfo_t = std::mem::zeroed();
            answered(call(gpu.raw(), link, &raw mut found))?;
            found
        };
        Ok(address(&found))
    }

    /// Whether the other end of a link is a switch.
    pub(crate) fn link_to_switch(&self, gpu: Handle, link: u32) -> Result<bool, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType else {
            return Err(Code::MISSING);
        };
        const SWITCH: u32 = 2;
        let mut kind = 0;
        // SAFETY: writes one number.
        answered(unsafe { call(gpu.raw(), link, &raw mut kind) })?;
        Ok(kind == SWITCH)
    }

    /// Fills the newest fabric structure that the driver accepts. The result is state, status,
    /// clique, cluster, health.
    pub(crate) fn fabric(&self, gpu: Handle) -> Result<(u8, u32, u32, [u8; 16], u8), Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetGpuFabricInfoV else {
            return Err(Code::MISSING);
        };
        let sizes = [
            size_of::<nvmlGpuFabricInfo_v3_t>(),
            size_of::<nvmlGpuFabricInfo_v2_t>(),
        ];
        let mut refused = Code::MISSING;
        for (size, number) in sizes.into_iter().zip([3_u32, 2]) {
            // SAFETY: the structure is plain numbers. The function fills the part that belongs to
            // the given version, which is not larger.
            let (found, code) = unsafe {
                let mut found: nvmlGpuFabricInfoV_t = std::mem::zeroed();
                found.version = size as u32 | number << 24;
                let code = call(gpu.raw(), &raw mut found);
                (found, code)
            };
            match answered(code) {
                Ok(()) => {
                    return Ok((
                        found.state,
                        found.status,
                        found.cliqueId,
                        found.clusterUuid,
                        found.healthSummary,
                    ));
                }
                Err(code) => refused = code,
            }
        }
        Err(refused)
    }

    /// The values of the fields, in order. None for a field that the driver does not know.
    pub(crate) fn fields(&self, gpu: Handle, fields: &[Field]) -> Result<Vec<Option<u64>>, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetFieldValues else {
            return Err(Code::MISSING);
        };
        // SAFETY: plain numbers, for which zero is a value.
        let blank: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        let mut values: Vec<nvmlFieldValue_t> = fields
            .iter()
            .map(|(id, link)| nvmlFieldValue_t {
                fieldId: *id,
                scopeId: *link,
                ..blank
            })
            .collect();
        // SAFETY: fills as many entries as there are.
        answered(unsafe { call(gpu.raw(), values.len() as i32, values.as_mut_ptr()) })?;
        Ok(values.iter().map(value).collect())
    }

    /// Processes that compute on the GPU, with their memory.
    pub(crate) fn processes(&self, gpu: Handle) -> Result<Vec<(u32, u64)>, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3 else {
            return Err(Code::MISSING);
        };
        listed(gpu, *call)
    }

    /// Processes that draw on the GPU, with their memory.
    pub(crate) fn drawing(&self, gpu: Handle) -> Result<Vec<(u32, u64)>, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetGraphicsRunningProcesses_v3 else {
            return Err(Code::MISSING);
        };
        listed(gpu, *call)
    }

    /// Processes that compute on the GPU through an MPS server, with their memory.
    pub(crate) fn sharing(&self, gpu: Handle) -> Result<Vec<(u32, u64)>, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetMPSComputeRunningProcesses_v3 else {
            return Err(Code::MISSING);
        };
        listed(gpu, *call)
    }

    pub(crate) fn event_set(&self) -> Result<EventSet, Code> {
        let Ok(call) = &self.nvml.lib().nvmlEventSetCreate else {
            return Err(Code::MISSING);
        };
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        // SAFETY: writes one handle.
        answered(unsafe { call(&raw mut set) })?;
        Ok(EventSet(set as usize))
    }

    /// Requests all event kinds that the GPU can report.
    pub(crate) fn register(&self, set: &EventSet, gpu: Handle) -> Result<(), Code> {
        let lib = self.nvml.lib();
        let (Ok(supported), Ok(register)) = (
            &lib.nvmlDeviceGetSupportedEventTypes,
            &lib.nvmlDeviceRegisterEvents,
        ) else {
            return Err(Code::MISSING);
        };
        let mut kinds: c_ulonglong = 0;
        // SAFETY: writes one number; then the handles are used as the library gave them.
        unsafe {
            answered(supported(gpu.raw(), &raw mut kinds))?;
            answered(register(gpu.raw(), kinds & KINDS, set.0 as nvmlEventSet_t))
        }
    }

    /// Blocks until something happens, or until the timeout.
    pub(crate) fn wait(&self, set: &EventSet, timeout_ms: u32) -> Result<Event, Code> {
        let Ok(call) = &self.nvml.lib().nvmlEventSetWait_v2 else {
            return Err(Code::MISSING);
        };
        // SAFETY: the structure is plain numbers; the function fills it.
        let found = unsafe {
            let mut found: nvmlEventData_t = std::mem::zeroed();
            answered(call(set.0 as nvmlEventSet_t, &raw mut found, timeout_ms))?;
            found
        };
        Ok(Event {
            gpu: Handle(found.device as usize),
            kind: found.eventType,
            value: found.eventData,
        })
    }

    pub(crate) fn free(&self, set: EventSet) {
        if let Ok(call) = &self.nvml.lib().nvmlEventSetFree {
            // SAFETY: the set came from this library and is not used again.
            unsafe { call(set.0 as nvmlEventSet_t) };
        }
    }
}

fn address(found: &nvmlPciInfo_t) -> String {
    let bytes: Vec<u8> = found
        .busId
        .iter()
        .map(|c| *c as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn value(found: &nvmlFieldValue_t) -> Option<u64> {
    if found.nvmlReturn != 0 {
        return None;
    }
    // SAFETY: the type says which member was written; all are plain numbers.
    unsafe {
        match found.valueType {
            0 => Some(found.value.dVal as u64),
            1 => Some(u64::from(found.value.uiVal)),
            2 => Some(found.value.ulVal),
            3 => Some(found.value.ullVal),
            4 => u64::try_from(found.value.sllVal).ok(),
            5 => u64::try_from(found.value.siVal).ok(),
            6 => Some(u64::from(found.value.usVal)),
            _ => None,
        }
    }
}
