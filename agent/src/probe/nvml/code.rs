//! NVML's return codes that this program acts on, with their texts.

use std::fmt;

/// NVML's answer when it does not answer the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(super) u32);

impl Code {
    /// Our own code: the driver lacks this function.
    pub(crate) const MISSING: Code = Code(u32::MAX);
    pub(crate) const TIMEOUT: Code = Code(10);
    pub(crate) const LOST: Code = Code(15);
    pub(crate) const RESET_REQUIRED: Code = Code(16);
    pub(crate) const MISMATCH: Code = Code(18);
    pub(crate) const UNKNOWN: Code = Code(999);
    pub(super) const TOO_SMALL: Code = Code(7);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            1 => "not initialised",
            2 => "invalid argument",
            3 => "not supported",
            4 => "no permission",
            6 => "not found",
            9 => "driver not loaded",
            10 => "timeout",
            15 => "the GPU is lost",
            16 => "the GPU must be reset",
            18 => "driver and library versions differ",
            25 => "argument version",
            28 => "GPU not found",
            999 => "unknown error",
            u32::MAX => "the driver does not have this function",
            code => return write!(f, "NVML code {code}"),
        };
        f.write_str(words)
    }
}
