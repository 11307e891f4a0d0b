//! One rank: what a runner says of it while it lives, and the lines that it leaves in `exits.jsonl`.

use muster_inspect::Arrivals;
use serde::{Deserialize, Serialize};

use super::Exit;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    pub rank: u32,
    pub local_rank: u32,
    pub pid: i32,
    pub start_time: u64,
    pub started_us: u64,
    /// Which start of the rank this is. All else here is of this attempt.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub attempt: u32,
    #[serde(default)]
    pub exit: Option<Exit>,
    #[serde(default)]
    pub exited_us: Option<u64>,
    /// The rank was killed, because it had not ended so long after SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed_after_ms: Option<u64>,
    #[serde(default)]
    pub last_step: Option<u64>,
    #[serde(default)]
    pub last_step_us: Option<u64>,
    #[serde(default)]
    pub first_step: Option<u64>,
    #[serde(default)]
    pub first_step_us: Option<u64>,
    /// The step at which training ends, if the rank's output shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// The newest loss, as it was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The newest speed, as it was printed, with its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// The name of the format that found the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_format: Option<String>,
    /// How many lines were read without a step, until the first step.
    #[serde(default)]
    pub stepless_lines: u64,
    /// Last lines of stderr, only for a rank that failed.
    #[serde(default)]
    pub tail: Vec<String>,
    /// Why the rank failed, in one line, if anything says it.
    #[serde(default)]
    pub first_error: Option<String>,
    /// The exception that this line is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<RankException>,
    /// What the rank printed last, if nothing says why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_output: Option<String>,
    /// How many bytes this rank has written to stdout and stderr.
    #[serde(default)]
    pub log_bytes: u64,
    /// Nothing of it moves. None: something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub still: Option<StillStatus>,
    /// When it comes to the collectives of its groups. None: the last look has not found it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<ArrivalsStatus>,
}

/// What one look has found out about one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalsStatus {
    /// Unix time of the look, by ten seconds.
    pub look: u64,
    pub groups: Vec<Arrivals>,
}

/// A rank that prints nothing, and whose processes read or write no files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillStatus {
    /// Since when.
    pub since_us: u64,
    /// Since when its processes have hardly used a processor. None: they use one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since_us: Option<u64>,
}

/// A Python exception that ended a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankException {
    /// The qualified type, as Python prints it: `zipfile.BadZipFile`.
    pub name: String,
    /// Its text in one line, cut where it is too long.
    pub text: String,
    /// `FILE:LINE in FUNCTION`, the innermost last. Of many, the script's own and the innermost ones.
    #[serde(default)]
    pub frames: Vec<String>,
    /// It has left the script: the rank wrote it down then, or torch's hook for such exceptions has printed
    /// it. Otherwise it was read in the output, and the script may have handled it.
    #[serde(default)]
    pub left_script: bool,
}

/// A process that ranks have left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    pub pid: i32,
    /// Its program, with its script if it has one.
    pub program: String,
    /// It had not ended when its grace was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub killed: bool,
}

/// One line of `exits.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub v: u32,
    /// None means the launcher.
    pub rank: Option<u32>,
    pub pid: i32,
    pub start_time: u64,
    pub started_us: u64,
    pub exit: Exit,
    pub exited_us: u64,
    /// As in [`RankStatus`].
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub attempt: u32,
    /// The rank was then told to start again. This line repeats that of the exit, which no longer
    /// says how the rank is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
}

impl ExitRecord {
    /// The exits of a journal that count: for each rank that of its newest attempt, or none if that
    /// attempt has not ended.
    pub fn newest(records: Vec<ExitRecord>) -> Vec<ExitRecord> {
        let mut newest: Vec<ExitRecord> = Vec::new();
        for record in records {
            newest.retain(|earlier| earlier.rank.is_none() || earlier.rank != record.rank);
            if !record.restarted {
                newest.push(record);
            }
        }
        newest
    }
}

/// Attempts are counted from 1.
fn first() -> u32 {
    1
}

fn is_first(attempt: &u32) -> bool {
    *attempt == first()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_counts_until_the_next_is_ordered() {
        let line = |rank: Option<u32>, attempt, restarted| ExitRecord {
            v: 1,
            rank,
            pid: 9,
            start_time: 3,
            started_us: 1,
            exit: Exit::Code { code: 1 },
            exited_us: 2,
            attempt,
            restarted,
        };
        let (first, again) = (line(Some(0), 1, false), line(Some(0), 1, true));
        let second = line(Some(0), 2, false);
        let others = [line(Some(1), 1, false), line(None, 1, false)];
        let newest = |lines: &[&ExitRecord]| {
            ExitRecord::newest(lines.iter().copied().cloned().collect::<Vec<_>>())
        };
        let [other, launcher] = &others;
        assert_eq!(newest(&[&first, other]), [first.clone(), other.clone()]);
        assert_eq!(newest(&[&first, other, &again, launcher]), others);
        // A damaged line may be missing before or between them.
        assert_eq!(newest(&[&again]), []);
        assert_eq!(newest(&[&first, &second]), std::slice::from_ref(&second));
        assert_eq!(newest(&[&first, &again, &second]), [second]);
        assert_eq!(newest(&[launcher, launcher]).len(), 2);
        // A line without the new words is one of a first attempt, and is written as before.
        let text = serde_json::to_string(&first).expect("numbers and strings always serialize");
        assert!(
            !text.contains("attempt") && !text.contains("restarted"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<ExitRecord>(&text).ok(), Some(first));
    }
}
