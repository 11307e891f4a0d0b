//! The calls about a GPU's memory: how much of it is used, and which errors it had.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::*;

use super::{Code, Handle, Library, answered};

/// Counts since the driver was loaded, not over the GPU's lifetime.
const VOLATILE: c_uint = 0;

/// Where an error was.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Dram,
    Sram,
}

impl Library {
    /// Total memory, by the newer call or else by the older.
    pub(crate) fn memory_total(&self, gpu: Handle) -> Result<u64, Code> {
        if let Ok(memory) = self.memory(gpu) {
            return Ok(memory.total);
        }
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetMemoryInfo else {
            return Err(Code::MISSING);
        };
        let mut memory = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: fills the structure.
        answered(unsafe { call(gpu.raw(), &raw mut memory) })?;
        Ok(memory.total)
    }

    /// The memory in use. The older call is not used, because it counts hundreds of MiB that the
    /// driver reserves for itself.
    pub(crate) fn memory_used(&self, gpu: Handle) -> Result<u64, Code> {
        self.memory(gpu).map(|memory| memory.used)
    }

    fn memory(&self, gpu: Handle) -> Result<nvmlMemory_v2_t, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetMemoryInfo_v2 else {
            return Err(Code::MISSING);
        };
        let version = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;
        let mut memory = nvmlMemory_v2_t {
            version,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: fills the structure whose version it is told.
        answered(unsafe { call(gpu.raw(), &raw mut memory) })?;
        Ok(memory)
    }

    /// Volatile errors, either uncorrectable or corrected ones.
    pub(crate) fn ecc_errors(&self, gpu: Handle, uncorrectable: bool) -> Result<u64, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetTotalEccErrors else {
            return Err(Code::MISSING);
        };
        let mut errors: c_ulonglong = 0;
        // SAFETY: writes one number.
        answered(unsafe {
            call(
                gpu.raw(),
                c_uint::from(uncorrectable),
                VOLATILE,
                &raw mut errors,
            )
        })?;
        Ok(errors)
    }

    /// Volatile errors that were corrected, in the DRAM or in the SRAM.
    pub(crate) fn corrected_in(&self, gpu: Handle, place: Place) -> Result<u64, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetMemoryErrorCounter else {
            return Err(Code::MISSING);
        };
        const CORRECTED: c_uint = 0;
        let place = match place {
            Place::Dram => nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM,
            Place::Sram => nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM,
        };
        let mut errors: c_ulonglong = 0;
        // SAFETY: writes one number.
        answered(unsafe { call(gpu.raw(), CORRECTED, VOLATILE, place, &raw mut errors) })?;
        Ok(errors)
    }

    /// Volatile uncorrectable errors of the SRAM, and whether there are more than the driver
    /// allows.
    pub(crate) fn sram_errors(&self, gpu: Handle) -> Result<(u64, bool), Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetSramEccErrorStatus else {
            return Err(Code::MISSING);
        };
        // SAFETY: the structure is plain numbers. The function fills the version that it is told.
        let found = unsafe {
            let mut found: nvmlEccSramErrorStatus_t = std::mem::zeroed();
            found.version = size_of::<nvmlEccSramErrorStatus_t>() as u32 | 1 << 24;
            answered(call(gpu.raw(), &raw mut found))?;
            found
        };
        Ok((
            found.volatileUncParity + found.volatileUncSecDed,
            found.bThresholdExceeded != 0,
        ))
    }

    /// The number of rows remapped for uncorrectable errors, whether a remap waits for a reset, and
    /// whether one failed.
    pub(crate) fn remapped_rows(&self, gpu: Handle) -> Result<(u32, bool, bool), Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetRemappedRows else {
            return Err(Code::MISSING);
        };
        let [mut corrected, mut uncorrected, mut pending, mut failed] = [0; 4];
        // SAFETY: writes four numbers.
        answered(unsafe {
            call(
                gpu.raw(),
                &raw mut corrected,
                &raw mut uncorrected,
                &raw mut pending,
                &raw mut failed,
            )
        })?;
        Ok((uncorrected, pending != 0, failed != 0))
    }

    /// Pages retired for double-bit errors (before Ampere).
    pub(crate) fn retired_pages(&self, gpu: Handle) -> Result<u32, Code> {
        let Ok(call) = &self.nvml.lib().nvmlDeviceGetRetiredPages_v2 else {
            return Err(Code::MISSING);
        };
        const DOUBLE_BIT: c_uint = 1;
        let (mut count, nowhere) = (0, std::ptr::null_mut());
        // SAFETY: with room for no entry, the function writes only their number.
        match answered(unsafe { call(gpu.raw(), DOUBLE_BIT, &raw mut count, nowhere, nowhere) }) {
            Ok(()) | Err(Code::TOO_SMALL) => Ok(count),
            Err(code) => Err(code),
        }
    }
}
