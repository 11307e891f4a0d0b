//! Watches what the start of the ranks is spent on, until their first step: when a forked rank's script
//! began and what it has imported (`launcher/marks.py`), when a rank has a GPU open, and what NCCL notes of
//! its own initialization.
//!
//! It changes nothing that a rank can see. It looks often at first and then less, so that each moment is
//! known to one part in twenty. What ranks write is bounded here; nobody decides by it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_runner::Folder;
use muster_runner::wire::{ImportStatus, ImportsStatus, NcclStatus, PhasesStatus};
use serde::Deserialize;

use crate::time::micros;

mod nccl;

/// The shortest and the longest gap between two looks.
const GAPS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A gap is this part of the time since the start.
const PART: u32 = 20;
/// A rank without a step is watched for so long. Some scripts print none.
const WATCHED: Duration = Duration::from_secs(600);
/// `launcher/marks.py` writes as many bytes.
const MARKS_MAX: u64 = 2_048;
/// NCCL's log has some 3 KiB for each communicator, and the first ones come first.
const LOG_MAX: u64 = 256 << 10;
const IMPORTS_MAX: usize = 8;
const TEXT_MAX: usize = 100;
/// Descriptors of a process that are looked at. CUDA opens its devices long before a data loader opens files.
const FILES_MAX: usize = 1_024;

/// Where neither is, nobody opens a GPU.
const DRIVERS: [&str; 2] = ["/dev/nvidiactl", "/dev/kfd"];

/// One rank as the group knows it.
pub(crate) struct Watched {
    pub(crate) rank: u32,
    pub(crate) local: u32,
    pub(crate) pid: i32,
    pub(crate) started_us: u64,
    /// It has made a step, or has ended: what it does from now on is no part of its start.
    pub(crate) over: bool,
}

/// What can be seen of a rank from outside.
pub(crate) trait Traces {
    /// The content of its own marks.
    fn marks(&self, local: u32) -> Option<Vec<u8>>;
    /// The paths of the files that a process has open.
    fn files(&self, pid: i32) -> Vec<PathBuf>;
    /// The beginning of NCCL's log of a process.
    fn nccl(&self, pid: i32) -> Option<Vec<u8>>;
}

/// The traces in the current directory and in `/proc`.
pub(crate) struct Here;

#[derive(Default)]
pub(crate) struct Phases {
    seen: BTreeMap<u32, Seen>,
    next: Duration,
}

#[derive(Default)]
struct Seen {
    pid: i32,
    over: bool,
    script_us: Option<u64>,
    gpu_us: Option<u64>,
    imports: Option<ImportsStatus>,
    nccl: Option<NcclStatus>,
}

/// The file of `launcher/marks.py`.
#[derive(Deserialize)]
struct Marks {
    script_us: u64,
    #[serde(default)]
    imports_us: u64,
    #[serde(default)]
    imports: Vec<(String, u64, String)>,
}

impl Phases {
    /// Looks if it is time. True: something new was seen. The second value is when to look next; `None`:
    /// there is nothing more to see. `at_once`: a rank has just made its first step, so what it has left
    /// until now counts.
    pub(crate) fn mind(
        &mut self,
        now: Duration,
        ranks: &[Watched],
        at_once: bool,
        traces: &impl Traces,
    ) -> (bool, Option<Duration>) {
        let since = |rank: &Watched| now.saturating_sub(Duration::from_micros(rank.started_us));
        let over = |rank: &Watched| {
            let known = self
                .seen
                .get(&rank.rank)
                .filter(|seen| seen.pid == rank.pid);
            known.is_some_and(|seen| seen.over) || since(rank) > WATCHED
        };
        let left: Vec<&Watched> = ranks.iter().filter(|rank| !over(rank)).collect();
        let Some(youngest) = left.iter().map(|rank| since(rank)).min() else {
            return (false, None);
        };
        if now < self.next && !at_once {
            return (false, Some(self.next));
        }
        let before = self.status();
        for rank in left {
            let seen = self.seen.entry(rank.rank).or_default();
            if seen.pid != rank.pid {
                *seen = Seen {
                    pid: rank.pid,
                    ..Seen::default()
                };
            }
            seen.look(rank, now, traces);
        }
        self.next = now + (youngest / PART).clamp(GAPS.0, GAPS.1);
        (self.status() != before, Some(self.next))
    }

    /// `None`: nothing was seen.
    pub(crate) fn status(&self) -> Option<PhasesStatus> {
        let last = |of: fn(&Seen) -> Option<u64>| {
            let all: Option<Vec<u64>> = self.seen.values().map(of).collect();
            all?.into_iter().max()
        };
        let all = || self.seen.values();
        let status = PhasesStatus {
            script_us: last(|seen| seen.script_us),
            gpu_us: last(|seen| seen.gpu_us),
            imports: { all().filter_map(|seen| seen.imports.as_ref()) }
                .max_by_key(|imports| imports.us)
                .cloned(),
            nccl: { all().filter_map(|seen| seen.nccl.as_ref()) }
                .max_by_key(|nccl| nccl.us)
                .cloned(),
        };
        (status != PhasesStatus::default()).then_some(status)
    }
}

impl Seen {
    fn look(&mut self, rank: &Watched, now: Duration, traces: &impl Traces) {
        if let Some(marks) = traces.marks(rank.local) {
            self.take(&marks, rank, micros(now));
        }
        if self.gpu_us.is_none()
            && !rank.over
            && traces.files(rank.pid).iter().any(|path| is_gpu(path))
        {
            self.gpu_us = Some(micros(now));
        }
        if let Some(log) = traces.nccl(rank.pid) {
            self.nccl = nccl::timings(&log).or(self.nccl.take());
        }
        self.over = rank.over;
    }

    /// Takes what a rank says of itself, so far as it can be true.
    fn take(&mut self, marks: &[u8], rank: &Watched, now_us: u64) {
        let Ok(marks) = serde_json::from_slice::<Marks>(marks) else {
            return;
        };
        if !(rank.started_us..=now_us).contains(&marks.script_us) {
            return;
        }
        self.script_us = Some(marks.script_us);
        // Only the first rank follows its imports; all of them import alike.
        if rank.local != 0 {
            return;
        }
        let most = now_us - marks.script_us;
        let us = marks.imports_us.min(most);
        let import = |(name, took, why): (String, u64, String)| ImportStatus {
            name: text(&name),
            us: took.min(us),
            why: text(&why),
        };
        let by = marks.imports.into_iter().take(IMPORTS_MAX).map(import);
        self.imports = Some(ImportsStatus {
            us,
            by: by.filter(|import| !import.name.is_empty()).collect(),
        });
    }
}

/// A text of a stranger, for one line.
fn text(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(TEXT_MAX)
        .collect()
}

/// Whether a path is that of a GPU. The driver's control device is no sign: whoever counts GPUs by NVML
/// opens it.
fn is_gpu(path: &Path) -> bool {
    let Some(path) = path.to_str() else {
        return false;
    };
    let of_nvidia = path.strip_prefix("/dev/nvidia").is_some_and(|rest| {
        rest == "-uvm" || !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit())
    });
    of_nvidia || path == "/dev/kfd"
}

impl Traces for Here {
    fn marks(&self, local: u32) -> Option<Vec<u8>> {
        let here = Folder::trusted(Path::new(".")).ok()?;
        here.read(format!("phases-{local}"), MARKS_MAX).ok()
    }

    fn files(&self, pid: i32) -> Vec<PathBuf> {
        if !DRIVERS.iter().any(|driver| Path::new(driver).exists()) {
            return Vec::new();
        }
        let Ok(listed) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return Vec::new();
        };
        let links = listed.take(FILES_MAX).flatten();
        links
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .collect()
    }

    fn nccl(&self, pid: i32) -> Option<Vec<u8>> {
        let here = Folder::trusted(Path::new(".")).ok()?;
        let file = here.open(format!("nccl-{pid}")).ok()?;
        let mut log = Vec::new();
        file.take(LOG_MAX).read_to_end(&mut log).ok()?;
        Some(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Fake {
        marks: BTreeMap<u32, String>,
        files: Vec<&'static str>,
        log: Option<&'static str>,
    }

    impl Traces for Fake {
        fn marks(&self, local: u32) -> Option<Vec<u8>> {
            Some(self.marks.get(&local)?.clone().into_bytes())
        }

        fn files(&self, _: i32) -> Vec<PathBuf> {
            self.files.iter().map(PathBuf::from).collect()
        }

        fn nccl(&self, _: i32) -> Option<Vec<u8>> {
            Some(self.log?.as_bytes().to_vec())
        }
    }

    fn watched(local: u32, over: bool) -> Watched {
        Watched {
            rank: 4 + local,
            local,
            pid: 10 + local as i32,
            started_us: 1_000_000,
            over,
        }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_slowest_rank_counts_and_only_what_all_have_shown() {
        let mut phases = Phases::default();
        let mut fake = Fake::default();
        let ranks = [watched(0, false), watched(1, false)];
        assert_eq!(
            phases.mind(at(1_001), &ranks, false, &fake),
            (false, Some(at(1_021)))
        );
        assert_eq!(phases.status(), None);
        let first = r#"{"script_us":1020000,"imports_us":300000,"imports":[["scipy",300000,"asks for RANK"]],"more":1}   "#;
        fake.marks.insert(0, first.into());
        assert!(!phases.mind(at(1_010), &ranks, false, &fake).0, "not yet");
        assert!(phases.mind(at(1_400), &ranks, false, &fake).0);
        let status = phases.status().expect("the imports were seen");
        assert_eq!(status.script_us, None, "the other rank has not said it");
        let scipy = ImportStatus {
            name: "scipy".into(),
            us: 300_000,
            why: "asks for RANK".into(),
        };
        let imports = status.imports.expect("as the first rank says");
        assert_eq!((imports.us, imports.by), (300_000, vec![scipy]));
        fake.marks
            .insert(1, r#"{"script_us":1031000,"imports_us":9}"#.into());
        fake.files = vec!["/dev/null", "/dev/nvidiactl", "/dev/nvidia0"];
        phases.mind(at(1_500), &ranks, false, &fake);
        let status = phases.status().expect("and more");
        assert_eq!(
            (status.script_us, status.gpu_us),
            (Some(1_031_000), Some(1_500_000))
        );
        assert_eq!(status.imports.map(|imports| imports.us), Some(300_000));
    }

    #[test]
    fn what_comes_after_the_first_step_is_no_part_of_the_start() {
        let mut phases = Phases::default();
        let mut fake = Fake::default();
        let mark = |us: u64| format!(r#"{{"script_us":1000001,"imports_us":{us}}}"#);
        fake.marks.insert(0, mark(7));
        phases.mind(at(1_100), &[watched(0, false)], false, &fake);
        // The next look is not due, but the step has come.
        fake.marks.insert(0, mark(8));
        let stepped = [watched(0, true)];
        assert!(phases.mind(at(1_101), &stepped, true, &fake).0);
        fake.marks.insert(0, mark(9));
        assert_eq!(phases.mind(at(9_000), &stepped, true, &fake), (false, None));
        let imports = phases.status().and_then(|status| status.imports);
        assert_eq!(imports.map(|imports| imports.us), Some(8));
        // A script without steps is not watched for ever.
        let mut phases = Phases::default();
        assert_eq!(
            phases.mind(at(700_000), &[watched(0, false)], false, &fake),
            (false, None)
        );
    }

    #[test]
    fn a_rank_cannot_say_what_cannot_be() {
        let said = |marks: &str| {
            let mut phases = Phases::default();
            let fake = Fake {
                marks: BTreeMap::from([(0, marks.to_owned())]),
                ..Fake::default()
            };
            phases.mind(at(2_000), &[watched(0, false)], false, &fake);
            phases.status()
        };
        for nonsense in [
            "",
            "x",
            "[]",
            "{}",
            r#"{"script_us":-1}"#,
            r#"{"script_us":"now"}"#,
        ] {
            assert_eq!(said(nonsense), None, "{nonsense}");
        }
        assert_eq!(said(r#"{"script_us":999999}"#), None, "before its start");
        assert_eq!(said(r#"{"script_us":2000001}"#), None, "in the future");
        let many: Vec<(String, u64, String)> = (0..50)
            .map(|n| {
                (
                    format!("\u{1b}[2J{n}{}", "x".repeat(500)),
                    u64::MAX,
                    String::new(),
                )
            })
            .collect();
        let many =
            serde_json::json!({"script_us": 1_500_000, "imports_us": u64::MAX, "imports": many});
        let imports = said(&many.to_string()).and_then(|status| status.imports);
        let imports = imports.expect("bounded");
        assert_eq!((imports.us, imports.by.len()), (500_000, IMPORTS_MAX));
        let first = &imports.by[0];
        assert_eq!(first.us, 500_000);
        assert!(first.name.starts_with("[2J0xx") && first.name.len() == TEXT_MAX);
    }

    #[test]
    fn only_a_device_that_a_kernel_runs_on_is_a_gpu() {
        let gpu = |path: &str| is_gpu(Path::new(path));
        assert!(
            [
                "/dev/nvidia0",
                "/dev/nvidia15",
                "/dev/nvidia-uvm",
                "/dev/kfd"
            ]
            .into_iter()
            .all(gpu)
        );
        let others = [
            "/dev/nvidiactl",
            "/dev/nvidia",
            "/dev/nvidia-modeset",
            "/dev/null",
            "/tmp/dev/nvidia0",
        ];
        assert!(!others.into_iter().any(gpu));
    }

    #[test]
    fn nccls_log_is_read_from_the_ranks_own_file() {
        let mut phases = Phases::default();
        let fake = Fake {
            log: Some(
                "h:1:2 [0] NCCL INFO Init timings: rank 0 nranks 1 total 0.02 (kernels 0.01, topo 0.00)",
            ),
            ..Fake::default()
        };
        phases.mind(at(1_100), &[watched(0, false)], false, &fake);
        let nccl = phases.status().and_then(|status| status.nccl);
        assert_eq!(nccl.map(|nccl| nccl.us), Some(20_000));
    }
}
