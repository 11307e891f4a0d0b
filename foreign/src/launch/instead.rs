//! What to write in place of a launcher that starts processes on other nodes by itself.

/// The refusal of such a launcher, by its name.
pub(super) fn starts_its_own(name: &str) -> String {
    let instead = match name {
        // It sets variables and becomes torchrun. `Accelerator()` reads them (accelerate/utils/launch.py 1.15).
        "accelerate" => {
            "write the script itself in place of `accelerate launch` and its options. Those that are not about processes and nodes are variables: ACCELERATE_MIXED_PRECISION=bf16 for --mixed_precision bf16"
        }
        // The ranks need what it sets, and cannot be started plainly.
        "horovodrun" | "mpirun" | "mpiexec" => {
            "write an MPIJob, whose launcher runs it with the workers as its hosts"
        }
        _ => "start the script with torchrun, or plainly",
    };
    format!(
        "{name} starts processes on other nodes by itself, which Muster cannot tell its place here; {instead}"
    )
}
