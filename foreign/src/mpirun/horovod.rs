//! The names of options of horovodrun (`horovod/runner/launch.py` of Horovod 0.28.1).

/// The options of horovodrun that take no value. All others take one.
pub(super) const SWITCHES: [&str; 32] = [
    "-h",
    "--help",
    "-v",
    "--version",
    "-cb",
    "--check-build",
    "--disable-cache",
    "--verbose",
    "--hierarchical-allreduce",
    "--no-hierarchical-allreduce",
    "--hierarchical-allgather",
    "--no-hierarchical-allgather",
    "--torus-allreduce",
    "--no-torus-allreduce",
    "--autotune",
    "--no-autotune",
    "--timeline-mark-cycles",
    "--no-timeline-mark-cycles",
    "--no-stall-check",
    "--stall-check",
    "--mpi-threads-disable",
    "--no-mpi-threads-disable",
    "--tcp",
    "--log-with-timestamp",
    "--log-without-timestamp",
    "-prefix-timestamp",
    "--prefix-output-with-timestamp",
    "--log-hide-timestamp",
    "--no-log-hide-timestamp",
    "--gloo",
    "--mpi",
    "--jsrun",
];

/// Options of horovodrun that were seen without their dashes in public files, or might be.
pub(super) const OPTIONS: [&str; 7] = [
    "--num-proc",
    "--min-np",
    "--min-num-proc",
    "--max-np",
    "--max-num-proc",
    "--slots-per-host",
    "--host-discovery-script",
];
