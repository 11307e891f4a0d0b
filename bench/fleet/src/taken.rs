//! What a process has used, measured from outside through procfs.

use std::{fs, time::Instant};

use anyhow::{Context, Result};

/// The clock ticks of /proc/PID/stat, the same in all Linux builds for decades (`getconf CLK_TCK`).
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) rss_kib: u64,
    /// The most that it ever had.
    pub(crate) peak_kib: u64,
    pub(crate) cpu_s: f64,
    pub(crate) at: Instant,
}

impl Taken {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = |field: &str| -> Result<u64> {
            let size = status.lines().find_map(|line| line.strip_prefix(field));
            let size = size.with_context(|| format!("no {field}"))?;
            Ok(size.trim().trim_end_matches(" kB").parse()?)
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat[stat.rfind(')').context("stat")? + 2..]
            .split(' ')
            .collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(Self {
            rss_kib: kib("VmRSS:")?,
            peak_kib: kib("VmHWM:")?,
            cpu_s: ticks / TICKS_PER_SECOND,
            at: Instant::now(),
        })
    }

    /// Processor seconds per second since then.
    pub(crate) fn cores_since(&self, before: &Self) -> f64 {
        (self.cpu_s - before.cpu_s) / (self.at - before.at).as_secs_f64()
    }
}
