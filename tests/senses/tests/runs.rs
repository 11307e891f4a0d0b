//! What the probes see together with what the agent knows of its own runs. Also the rules that ask
//! one counter each, or the kernel.

use muster_agent::probe::HeldRun;
use muster_core::health::{Finding, Remedy, Severity, Subject};
use muster_fake_nvml::hardware::Hardware;
use muster_senses::{Eyes, Machine};

fn gpu(eyes: &Eyes, index: usize) -> Subject {
    Subject::Gpu(eyes.report.gpus[index].uuid.clone())
}

/// A run of a job on some GPUs of the machine.
fn run(eyes: &Eyes, job: &str, generation: u32, gpus: &[usize]) -> HeldRun {
    let gpus = gpus
        .iter()
        .map(|index| eyes.report.gpus[*index].uuid.clone())
        .collect();
    HeldRun {
        name: format!("{job}-g{generation}"),
        uid: job.to_owned(),
        generation: generation.into(),
        job: format!("default/{job}"),
        gpus,
        ..HeldRun::default()
    }
}

fn of_check<'a>(eyes: &'a Eyes, check: &str) -> Vec<&'a Finding> {
    eyes.report
        .health
        .findings
        .iter()
        .filter(|finding| finding.check == check)
        .collect()
}

/// Looks at the machine with rules that do not wait, so that the test need not wait either.
async fn look_by(machine: &Machine, rules: &str) -> Eyes {
    let path = machine.state_dir().join("rules");
    std::fs::write(&path, rules).expect("the directory is ours");
    machine
        .look(&[
            "--health-rules",
            path.to_str().expect("temporary files have plain names"),
        ])
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_s_fault_under_two_jobs_on_one_gpu_puts_the_gpu_under_suspicion() {
    let machine = Machine::new("8xh100");
    let mut eyes = machine.look(&[]).await;
    let times = |report: &muster_core::node_report::NodeReport, index: usize, words: &str| {
        let on = Subject::Gpu(report.gpus[index].uuid.clone());
        report
            .health
            .findings
            .iter()
            .any(|f| f.check == "xid:31" && f.subject == on && f.reason.contains(words))
    };
    // The bug of one job returns with each generation. The bug of a second job is on two GPUs.
    eyes.hold(&[run(&eyes, "a", 1, &[3]), run(&eyes, "b", 1, &[4, 5])]);
    machine.inject("gpu3", "xid=31");
    eyes.until("the first fault", |report| times(report, 3, "XID 31"))
        .await;
    eyes.hold(&[run(&eyes, "a", 2, &[3]), run(&eyes, "b", 1, &[4, 5])]);
    machine.inject("gpu3", "xid=31");
    machine.inject("gpu4", "xid=31");
    machine.inject("gpu5", "xid=31");
    eyes.until("the second", |report| {
        times(report, 3, "2 times") && times(report, 5, "XID 31")
    })
    .await;
    eyes.hold(&[run(&eyes, "c", 1, &[4])]);
    machine.inject("gpu4", "xid=31");
    eyes.until("another job's on a GPU of b", |report| {
        times(report, 4, "2 times")
    })
    .await;
    assert!(
        of_check(&eyes, "xid-app-repeated").is_empty(),
        "{:?}",
        eyes.report.health
    );
    // The kernel log may report this after the run has ended.
    eyes.hold(&[run(&eyes, "d", 1, &[3])]);
    eyes.hold(&[run(&eyes, "d", 1, &[3]), run(&eyes, "e", 1, &[0])]);
    machine.inject("gpu3", "xid=13");
    let found = eyes.finding("xid-app-repeated").await;
    assert_eq!(
        (found.severity, found.remedy, found.subject),
        (Severity::Warn, Remedy::Support, gpu(&eyes, 3)),
        "{}",
        found.reason
    );
    assert_eq!(eyes.report.placeable().len(), 8, "no more than a suspicion");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_nobody_accounts_for_withholds_an_idle_gpu() {
    let machine = Machine::new("8xh100");
    let mut eyes = look_by(&machine, "memory-held drain none above=15\n").await;
    assert!(
        of_check(&eyes, "memory-held").is_empty(),
        "what the driver reserves is not used: {:?}",
        eyes.report.health
    );
    machine.inject("gpu2", "memory=700");
    let found = eyes.finding("memory-held").await;
    assert_eq!(
        (found.severity, found.subject),
        (Severity::Drain, gpu(&eyes, 2)),
        "{}",
        found.reason
    );
    assert!(
        found
            .reason
            .ends_with("by no process that this agent can see: 700, above 15"),
        "{}",
        found.reason
    );
    assert_eq!(eyes.report.placeable().len(), 7);
    // These are Muster's own workers, which may be invisible in a container.
    eyes.hold(&[run(&eyes, "a", 1, &[1, 2])]);
    eyes.no_finding("memory-held").await;
    eyes.hold(&[run(&eyes, "a", 1, &[1])]);
    eyes.finding("memory-held").await;
    machine.inject("gpu2", "memory=15");
    eyes.no_finding("memory-held").await;
    // The launch refuses a process that is listed. A screen may have its memory.
    machine.inject("gpu2", "memory=700");
    eyes.finding("memory-held").await;
    machine.inject("gpu2", "process=4711");
    eyes.no_finding("memory-held").await;
    machine.inject("gpu2", "healthy");
    machine.inject("gpu2", "memory=700");
    eyes.finding("memory-held").await;
    let mut hardware = Hardware::read(&machine.dir()).unwrap();
    hardware.gpus[2].display = true;
    hardware.write(&machine.dir()).unwrap();
    eyes.no_finding("memory-held").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_killed_is_told_with_its_run_and_keeps_work_away() {
    let machine = Machine::new("4xl40s");
    let mut eyes = machine.look(&[]).await;
    let stuck = |pids: &[i32]| HeldRun {
        unkillable: Some(pids.to_vec()),
        ..run(&eyes, "a", 3, &[0])
    };
    let (one, nobody, gone) = (stuck(&[4711]), stuck(&[]), run(&eyes, "a", 3, &[0]));
    eyes.hold(&[one]);
    let found = eyes.finding("worker-unkillable").await;
    assert_eq!(
        (found.severity, found.remedy, &found.subject),
        (Severity::Drain, Remedy::NodeReboot, &Subject::Node)
    );
    assert_eq!(
        found.reason,
        "process 4711 of a-g3 cannot be killed: alive a minute after SIGKILL"
    );
    let named: Vec<String> = found.runs.iter().map(ToString::to_string).collect();
    assert_eq!(named, ["a-g3"]);
    assert!(eyes.report.health.withholds_node().is_some());
    eyes.hold(&[nobody]);
    let unnamed = "what is left of a-g3 cannot be killed: alive a minute after SIGKILL";
    eyes.until("a cgroup that is not empty", |report| {
        report.health.findings.iter().any(|f| f.reason == unnamed)
    })
    .await;
    eyes.hold(&[gone]);
    eyes.no_finding("worker-unkillable").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_no_service_sets_is_warned_of() {
    let machine = Machine::new("4xl40s");
    let mut eyes = look_by(&machine, "clock-unsynchronised warn none\n").await;
    machine.inject("kernel", "clock=unset");
    let found = eyes.finding("clock-unsynchronised").await;
    assert_eq!(
        (found.severity, found.subject),
        (Severity::Warn, Subject::Node),
        "{}",
        found.reason
    );
    assert_eq!(eyes.report.placeable().len(), 4);
    machine.inject("kernel", "clock=set");
    eyes.no_finding("clock-unsynchronised").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_counter_of_a_port_is_judged_by_itself() {
    let machine = Machine::new("8xh100");
    let mut eyes = machine.look(&[]).await;
    for (nic, counter, check, severity) in [
        (
            "mlx5_0",
            "excessive_buffer_overrun_errors:1",
            "port-buffer-overruns",
            Severity::Drain,
        ),
        (
            "mlx5_3",
            "local_link_integrity_errors:1",
            "port-integrity-errors",
            Severity::Drain,
        ),
        (
            "mlx5_4",
            "rnr_nak_retry_err:1",
            "port-retries-exhausted",
            Severity::Warn,
        ),
        (
            "mlx5_5",
            "symbol_error:121",
            "port-symbol-errors",
            Severity::Drain,
        ),
        (
            "mlx5_5",
            "symbol_error:1000000",
            "port-symbol-burst",
            Severity::Warn,
        ),
        (
            "mlx5_6",
            "link_error_recovery:1000000",
            "port-link-recoveries",
            Severity::Warn,
        ),
        (
            "mlx5_9",
            "port_xmit_discards:1000000",
            "port-discards",
            Severity::Warn,
        ),
        (
            "mlx5_10",
            "local_ack_timeout_err:1000000",
            "port-ack-timeouts",
            Severity::Warn,
        ),
        (
            "mlx5_11",
            "roce_slow_restart:1000000",
            "port-slow-restarts",
            Severity::Warn,
        ),
    ] {
        machine.inject(nic, &format!("counter={counter}"));
        let found = eyes.finding(check).await;
        assert_eq!(
            (found.severity, found.subject),
            (severity, Subject::Nic(nic.into())),
            "{}",
            found.reason
        );
    }
    let of_ports = eyes
        .report
        .health
        .findings
        .iter()
        .filter(|finding| finding.check.starts_with("port-"));
    assert_eq!(of_ports.count(), 9, "{:?}", eyes.report.health);
}
