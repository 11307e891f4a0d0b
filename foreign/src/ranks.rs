//! The number of ranks on a node in torchrun's words. What becomes of it is in `procs`.

/// How many ranks a node has, as the command or the job says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Procs {
    Count(i64),
    Gpu,
    Cpu,
    /// One for each GPU, else one for each CPU.
    Auto,
}

impl Procs {
    /// The words of torchrun's `--nproc-per-node`.
    pub(crate) fn read(text: &str) -> Result<Procs, String> {
        match text {
            "auto" => Ok(Procs::Auto),
            "gpu" => Ok(Procs::Gpu),
            "cpu" => Ok(Procs::Cpu),
            number => match number.parse() {
                Ok(count) => Ok(Procs::Count(count)),
                Err(_) => Err(format!("is {text:?}, must be auto, gpu, cpu or a number")),
            },
        }
    }
}
