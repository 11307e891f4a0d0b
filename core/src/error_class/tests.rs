use super::*;

fn of(error: &str) -> ErrorClass {
    of_end(Exit::Code(1), Some(error), None)
}

#[test]
fn the_line_tells_the_class_where_it_means_one_thing() {
    use ErrorClass::*;
    for (error, class) in [
        ("ValueError: loss is nan", Code),
        ("KeyError: 'input_ids'", Code),
        ("ModuleNotFoundError: No module named 'data'", Code),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 9x2)",
            Code,
        ),
        ("train.py: error: unrecognized arguments: --lr", Code),
        (
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
            Code,
        ),
        (
            "json.decoder.JSONDecodeError: Expecting value: line 1",
            Data,
        ),
        ("zipfile.BadZipFile: File is not a zip file", Data),
        ("EOFError: Ran out of input", Data),
        (
            "OSError: image file is truncated (12 bytes not processed)",
            Data,
        ),
        ("KeyboardInterrupt", UserStop),
        ("MemoryError", HostMemory),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory",
            HostMemory,
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            GpuMemory,
        ),
        (
            "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
            GpuHardware,
        ),
        (
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            Link,
        ),
        (
            "DistBackendError: NCCL error: NET/IB: Got completion with status=IBV_WC_RETRY_EXC_ERR(12)",
            Network,
        ),
        ("OSError: [Errno 113] No route to host", Network),
        (
            "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0",
            Storage,
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address.",
            Launcher,
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination",
            Infrastructure,
        ),
    ] {
        assert_eq!(of(error), class, "{error}");
    }
}

#[test]
fn what_may_be_two_things_has_no_class() {
    for error in [
        "RuntimeError: it did not work",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: unspecified launch failure",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "TimeoutError: [Errno 110] Connection timed out",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.",
        "EOFError",
        "OSError: [Errno 28] inotify watch limit reached",
        "ImportError: libcudnn.so.9: cannot open shared object file",
        "train.MyValueError: bad",
        "last output: ValueError: bad",
        "Segmentation fault",
    ] {
        assert_eq!(of(error), ErrorClass::Unknown, "{error}");
    }
    assert_eq!(of_end(Exit::Code(1), None, None), ErrorClass::Unknown);
    for signal in [6, 7, 9, 11, 15] {
        let class = of_end(Exit::Signal(signal), None, None);
        assert_eq!(class, ErrorClass::Unknown, "{signal}");
    }
}

#[test]
fn the_end_itself_may_tell_the_class() {
    let oom = format!("{OUT_OF_MEMORY}its memory limit of 2 GiB is full");
    let oom = of_end(Exit::Signal(9), Some(&oom), None);
    assert_eq!(oom, ErrorClass::HostMemory);
    let missing = of_end(
        Exit::Code(127),
        Some("run.sh: line 3: nvcc: command not found"),
        None,
    );
    assert_eq!(missing, ErrorClass::Launcher);
    assert_eq!(of_end(Exit::Signal(2), None, None), ErrorClass::UserStop);
    let refused = format!("{NO_RANK_BEGAN}prterun: unknown option");
    let refused = of_end(Exit::Code(213), Some(&refused), None);
    assert_eq!(refused, ErrorClass::Launcher);
}

/// One number of the kernel means a disk, a socket, a terminal or memory: the path tells.
#[test]
fn a_path_tells_what_the_kernel_speaks_of() {
    use ErrorClass::*;
    for (error, class) in [
        ("OSError: [Errno 28] No space left on device", Storage),
        (
            "OSError: [Errno 28] No space left on device: '/ckpt/7.pt'",
            Storage,
        ),
        (
            "OSError: [Errno 28] No space left on device: '/dev/shm/torch_7'",
            HostMemory,
        ),
        (
            "OSError: [Errno 116] Stale file handle: '/data/a.bin'",
            Storage,
        ),
        (
            "OSError: [Errno 5] Input/output error: '/data/a.bin'",
            Storage,
        ),
        // A write to a terminal that is gone, and a socket.
        ("OSError: [Errno 5] Input/output error", Unknown),
        (
            "OSError: [Errno 107] Transport endpoint is not connected",
            Unknown,
        ),
        (
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/s3/a'",
            Storage,
        ),
        (
            "OSError: [Errno 5] Input/output error: '/dev/nvidia0'",
            Unknown,
        ),
        (
            "terminate called after throwing an instance of 'std::filesystem::filesystem_error' what(): filesystem error: cannot rename: Input/output error [/ckpt/a]",
            Storage,
        ),
    ] {
        assert_eq!(of(error), class, "{error}");
    }
    let error = "OSError: [Errno 28] No space left on device";
    let exception = RankException {
        name: "OSError".into(),
        text: "[Errno 28] No space left on device".into(),
        frames: vec!["/usr/lib/python3.12/multiprocessing/synchronize.py:57 in __init__".into()],
        left_script: true,
    };
    let class = of_end(Exit::Code(1), Some(error), Some(&exception));
    assert_eq!(class, HostMemory, "a semaphore is a file in /dev/shm");
}

#[test]
fn every_check_that_ends_a_member_has_a_class() {
    let table = include_str!("../health/table.txt");
    let mut seen = 0;
    for line in table.lines() {
        let mut words = line.split_whitespace();
        let (Some(check), Some("fail_now" | "drain")) = (words.next(), words.next()) else {
            continue;
        };
        seen += 1;
        let known = ["memory-held", "clock", "mig-pending", "workers-container"];
        let open = known.iter().any(|name| check.starts_with(name));
        assert!(
            open || of_check(check) != ErrorClass::Unknown,
            "{check} has no class"
        );
    }
    assert!(seen > 30, "the table has another form");
    assert_eq!(of_check("xid:79"), ErrorClass::GpuHardware);
    assert_eq!(of_check("xid:74"), ErrorClass::Link);
    assert_eq!(of_check("xid:145:fatal"), ErrorClass::Link);
    assert_eq!(of_check("port-flaps"), ErrorClass::Link);
    assert_eq!(of_check("xid:31"), ErrorClass::Unknown);
    assert_eq!(of_check("of-a-later-version"), ErrorClass::Unknown);
}
