//! What looking costs: CPU and memory of a process that does nothing but probe a machine with 8 GPUs, at the agent's own pace.

fn main() {}
