//! What looking costs: CPU and memory of a process that does nothing but probe a machine with 8 GPUs, at the agent's own pace. The fake library
//! answers in no time: what a real driver takes for its answers is not in it.
//!
//! `cargo run --release -p muster-senses --bin senses-cost [SECONDS [SCENARIO]]`

use std::{fs, thread, time::Duration};

use muster_agent::probe::Pace;
use muster_senses::{Eyes, Machine};

/// Kernel ticks a second, as `/proc` counts them on every Linux (`USER_HZ`).
const TICKS: f64 = 100.0;

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(60, |text| text.parse().expect("SECONDS is a number"));
    let scenario = args.next().unwrap_or_else(|| "8xh100".into());
    let machine = Machine::new(&scenario);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread can be started");
    let eyes = runtime.block_on(Eyes::open(&machine.config(Pace::default(), &[])));
    let begun = cpu_seconds();
    // Not waiting for a state: time is what is measured.
    thread::sleep(Duration::from_secs(seconds));
    let used = cpu_seconds() - begun;
    println!("{scenario}: {} GPUs, {} RDMA devices, {seconds} s", eyes.report.gpus.len(), eyes.report.network.rdma.len());
    println!("CPU     {:.3} % of one core (target 0.5 %)", used / seconds as f64 * 100.0);
    println!("memory  {} (target 30 MiB)", status("VmRSS"));
    println!("peak    {}", status("VmHWM"));
    println!("threads {}", status("Threads"));
}

fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").expect("procfs is there");
    let after_name: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime and stime, fields 14 and 15 of the whole line.
    after_name[11..13].iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

fn status(key: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").expect("procfs is there");
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned()).unwrap_or_default()
}
