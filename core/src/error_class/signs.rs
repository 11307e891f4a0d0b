//! Words by which libraries and Python name the kind of an error, and the checks of a node's health. A sign stands
//! here only if it means one thing. Texts are those of torch 2.4 to 2.15, NCCL 2.20 to 2.28 and CUDA 12 and 13, as
//! they were seen, as their sources have them, or as users report them.

use super::ErrorClass::{
    self, Code, Data, GpuHardware, GpuMemory, HostMemory, Infrastructure, Launcher, Link, Network,
    Storage, UserStop,
};

/// A text that has all these words is of this class. The first that fits counts.
const TEXTS: [(&[&str], ErrorClass); 50] = [
    (&["CUDA out of memory"], GpuMemory),
    (&["HIP out of memory"], GpuMemory),
    (&["CUDA error: out of memory"], GpuMemory),
    (&["Cuda failure", "out of memory"], GpuMemory),
    (&["CUBLAS_STATUS_ALLOC_FAILED"], GpuMemory),
    (&["OOM when allocating tensor", "device:GPU"], GpuMemory),
    (&["DefaultCPUAllocator: "], HostMemory),
    (&["std::bad_alloc"], HostMemory),
    // The limit of locked memory, of which the host has enough.
    (&["ibv_reg_mr", "Cannot allocate memory"], Infrastructure),
    (&["Cannot allocate memory"], HostMemory),
    (
        &["shared memory segment", "No space left on device"],
        HostMemory,
    ),
    (&["uncorrectable ECC error"], GpuHardware),
    (&["cudaErrorECCUncorrectable"], GpuHardware),
    (&["GPU is lost"], GpuHardware),
    (&["fallen off the bus"], GpuHardware),
    (&["uncorrectable NVLink error"], Link),
    (&["cudaErrorNvlinkUncorrectable"], Link),
    // NCCL's `net_ib.cc`, of a port of its own node.
    (&["NET/IB", "port error"], Link),
    (&["NET/IB", "local catastrophic error"], Link),
    // A packet that the other side never acknowledged.
    (&["IBV_WC_RETRY_EXC_ERR"], Network),
    (&["transport retry counter exceeded"], Network),
    (&["Got completion", "with error 12,"], Network),
    (&["Temporary failure in name resolution"], Network),
    // torch's writer could not write as much as it had: a full disk, as a rule, and always the disk.
    (&["inline_container.cc", "unexpected pos"], Storage),
    (&["PytorchStreamWriter failed writing file"], Storage),
    (&["server socket has failed to listen"], Launcher),
    (&["server socket has failed to bind"], Launcher),
    (&["torch.distributed.elastic.rendezvous."], Launcher),
    // CUDA 802 and 803: the fabric manager is not ready, or half of a driver was replaced.
    (&["CUDA error: system not yet initialized"], Infrastructure),
    (
        &["unsupported display driver / cuda driver combination"],
        Infrastructure,
    ),
    (&["Driver/library version mismatch"], Infrastructure),
    (&["PytorchStreamReader failed"], Data),
    (&["image file is truncated"], Data),
    (&["EOFError: Ran out of input"], Data),
    (
        &["Compressed file ended before the end-of-stream marker"],
        Data,
    ),
    (&["Weights only load failed"], Code),
    (&["device-side assert triggered"], Code),
    (&["shapes cannot be multiplied"], Code),
    (
        &["The size of tensor a", "must match the size of tensor b"],
        Code,
    ),
    (&["Sizes of tensors must match"], Code),
    (&["stack expects each tensor to be equal size"], Code),
    (&["is invalid for input of size"], Code),
    (&["Expected all tensors to be on the same device"], Code),
    (&["Error(s) in loading state_dict"], Code),
    (
        &["Expected to have finished reduction in the prior iteration"],
        Code,
    ),
    (&["does not require grad and does not have a grad_fn"], Code),
    (
        &["Trying to backward through the graph a second time"],
        Code,
    ),
    (&["modified by an inplace operation"], Code),
    (&["Detected mismatch between collectives"], Code),
    // argparse, click and others, before they end a program whose arguments they do not take.
    (&[": error: ", "argument"], Code),
];

/// Exceptions that mean one thing whatever their text is. A qualified name may end in one of these.
const EXCEPTIONS: [(ErrorClass, &[&str]); 4] = [
    (UserStop, &["KeyboardInterrupt"]),
    (HostMemory, &["MemoryError", "_ArrayMemoryError"]),
    (
        Data,
        &[
            "UnicodeDecodeError",
            "JSONDecodeError",
            "UnpicklingError",
            "BadZipFile",
            "BadGzipFile",
            "LZMAError",
            "tarfile.ReadError",
            "zlib.error",
            "csv.Error",
            "binascii.Error",
            "UnidentifiedImageError",
            "ArrowInvalid",
            "ParserError",
            "SafetensorError",
            "DatasetGenerationError",
            "DataLossError",
        ],
    ),
    (
        Code,
        &[
            "ArithmeticError",
            "AssertionError",
            "AttributeError",
            "FloatingPointError",
            "IndentationError",
            "IndexError",
            "KeyError",
            "LookupError",
            "ModuleNotFoundError",
            "NameError",
            "NotImplementedError",
            "OverflowError",
            "RecursionError",
            "StopIteration",
            "SyntaxError",
            "TabError",
            "TypeError",
            "UnboundLocalError",
            "UnicodeEncodeError",
            "ValueError",
            "ZeroDivisionError",
        ],
    ),
];

/// Beginnings of the names of checks. The first that fits counts.
const CHECKS: [(&str, ErrorClass); 38] = [
    // NVLink, before the other XIDs. 144 to 150 are those of Blackwell.
    ("xid:74", Link),
    ("xid:144", Link),
    ("xid:145", Link),
    ("xid:146", Link),
    ("xid:147", Link),
    ("xid:148", Link),
    ("xid:149", Link),
    ("xid:150", Link),
    ("xid:", GpuHardware),
    ("xid-repeated", GpuHardware),
    ("recovery-", GpuHardware),
    ("gpu-", GpuHardware),
    ("ecc-", GpuHardware),
    ("dram-", GpuHardware),
    ("sram-", GpuHardware),
    ("row-remap-", GpuHardware),
    ("retired-pages", GpuHardware),
    ("sxid", Link),
    ("pcie-", Link),
    ("nvlink-", Link),
    ("fabric-", Link),
    ("port-", Link),
    ("nic-", Link),
    ("efa-", Link),
    ("interface-", Link),
    ("state-disk-", Storage),
    ("work-disk-", Storage),
    ("memory-low", HostMemory),
    ("cgroup-oom", HostMemory),
    ("kernel-oom", HostMemory),
    ("shm-small", HostMemory),
    ("driver-mismatch", Infrastructure),
    ("nvml-", Infrastructure),
    ("awaited-", Infrastructure),
    ("machine-check", Infrastructure),
    ("kernel-hung-task", Infrastructure),
    ("worker-unkillable", Infrastructure),
    ("termination-notice", Infrastructure),
];

/// XIDs that programs cause, and broken GPUs too. They end a member only by an operator's own rule.
const OF_EITHER: [&str; 5] = ["xid:13", "xid:31", "xid:43", "xid:45", "xid:94"];

pub(super) fn of_text(error: &str) -> Option<ErrorClass> {
    let has_all = |words: &&[&str]| words.iter().all(|word| error.contains(word));
    let found = TEXTS.iter().find(|(words, _)| has_all(words));
    found.map(|(_, class)| *class)
}

pub(super) fn of_exception(name: &str, text: &str) -> Option<ErrorClass> {
    // A library that is not there may be a mount that is not there.
    if text.contains("cannot open shared object file") {
        return None;
    }
    let is = |known: &&str| {
        name.strip_suffix(known)
            .is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    let mut classes = EXCEPTIONS.iter();
    let found = classes.find(|(_, names)| names.iter().any(&is));
    found.map(|(class, _)| *class)
}

pub(super) fn of_check(check: &str) -> ErrorClass {
    if OF_EITHER.contains(&check) {
        return ErrorClass::Unknown;
    }
    let found = CHECKS.iter().find(|(name, _)| check.starts_with(name));
    found.map_or(ErrorClass::Unknown, |(_, class)| *class)
}
