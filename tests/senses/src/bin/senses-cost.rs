//! The cost of looking: CPU and memory of a process that only probes a machine with 8 GPUs, at the
//! agent's own pace. The fake library answers at once, apart from one stat per call. The time that
//! a real driver takes for its answers is not included.
//!
//! Seconds of processor time mean little on a machine whose speed changes by the hour. So a fixed
//! loop is timed in the same run. The ratio to it also holds on other machines and at other hours.
//!
//! Run it with `cargo run --release --bin senses-cost [SECONDS [SCENARIO [RUNS]]]`.

use std::{
    collections::BTreeMap,
    fs,
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use muster_agent::probe::Pace;
use muster_senses::{Eyes, Machine};

/// Kernel ticks per second. `/proc` counts them so on every Linux (`USER_HZ`).
const TICKS: f64 = 100.0;
/// The length of the fixed loop: multiplications that each wait for the previous one. They take
/// about a tenth of a second on a core of 3 GHz.
const STEPS: u64 = 40_000_000;

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args
        .next()
        .map_or(60, |text| text.parse().expect("SECONDS is a number"));
    let scenario = args.next().unwrap_or_else(|| "8xh100".into());
    let runs: usize = args
        .next()
        .map_or(5, |text| text.parse().expect("RUNS is a number"));
    let machine = Machine::new(&scenario);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a thread can be started");
    let eyes = runtime.block_on(Eyes::open(&machine.config(Pace::default(), &[])));
    println!(
        "{scenario}: {} GPUs, {} RDMA devices",
        eyes.report.gpus.len(),
        eyes.report.network.rdma.len()
    );
    let (mut costs, mut loops, mut threads) = (Vec::new(), Vec::new(), BTreeMap::new());
    for _ in 0..runs {
        loops.push(fixed_loop());
        let begun = nanoseconds();
        // This does not wait for a state, because time itself is measured.
        thread::sleep(Duration::from_secs(seconds));
        let ended = nanoseconds();
        let mut all = 0;
        for ((id, name), end) in ended {
            let used = end - begun.get(&(id, name.clone())).copied().unwrap_or(0);
            *threads.entry(name).or_insert(0) += used;
            all += used;
        }
        costs.push(all as f64 / 1e9 / seconds as f64 * 100.0);
    }
    let (cost, fixed) = (spread(&mut costs), spread(&mut loops));
    println!(
        "CPU        {:.3} % of one core ({:.3} to {:.3}, {runs} runs of {seconds} s; target 0.5 %)",
        cost.1, cost.0, cost.2
    );
    println!(
        "fixed loop {:.1} ms ({:.1} to {:.1})",
        fixed.1 * 1e3,
        fixed.0 * 1e3,
        fixed.2 * 1e3
    );
    let a_minute = cost.1 / 100.0 * 60.0;
    println!(
        "ratio      a minute of looking costs as much as {:.3} fixed loops",
        a_minute / fixed.1
    );
    for (name, used) in threads {
        println!(
            "           {:6.3} % {name}",
            used as f64 / 1e9 / (seconds as usize * runs) as f64 * 100.0
        );
    }
    println!("memory     {} (target 30 MiB)", status("VmRSS"));
    println!("peak       {}", status("VmHWM"));
    println!("threads    {}", status("Threads"));
}

fn fixed_loop() -> f64 {
    let begun = Instant::now();
    let mut value = black_box(1_u64);
    for step in 0..STEPS {
        // The value goes through memory, so that no compiler shortens the loop.
        value = black_box(
            value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(step),
        );
    }
    begun.elapsed().as_secs_f64()
}

/// The lowest, the median and the highest value.
fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    )
}

/// The processor time of each thread, by id and name. `/proc/self/stat` counts in ticks, which are
/// too coarse here.
fn nanoseconds() -> BTreeMap<(String, String), u64> {
    let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
    let tasks = fs::read_dir("/proc/self/task")
        .expect("procfs is there")
        .flatten();
    let of = |task: fs::DirEntry| {
        let used = read(task.path().join("schedstat"))
            .split(' ')
            .next()
            .and_then(|text| text.parse().ok());
        // A kernel without scheduler statistics has only ticks.
        let used =
            used.unwrap_or_else(|| (ticks(&read(task.path().join("stat"))) / TICKS * 1e9) as u64);
        (
            (
                task.file_name().to_string_lossy().into_owned(),
                read(task.path().join("comm")).trim().to_owned(),
            ),
            used,
        )
    };
    tasks.map(of).collect()
}

/// The sum of utime and stime, which are fields 14 and 15 of the whole line.
fn ticks(stat: &str) -> f64 {
    let after_name: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    after_name
        .get(11..13)
        .into_iter()
        .flatten()
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum()
}

fn status(key: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").expect("procfs is there");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value
        .map(|value| value.trim().to_owned())
        .unwrap_or_default()
}
