//! The record of one job: about a kilobyte, whatever the job was.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    fleet::{
        actor::Actor,
        job::{JobRecord, Phase, Reason},
        receipt::Incident,
        time_account::Spent,
    },
    id::{JobName, JobUid, NodeName},
    period::micros,
    spec::{GpusSaid, JobSpec},
    time::Timestamp,
};

/// Nodes that a record names as those on which the job ran. A job of more nodes names some of them, and says
/// how many there were.
pub const NODES_MAX: usize = 16;

/// Nodes that a record names as culprits: those that cost the job most time.
pub const CULPRITS_MAX: usize = 8;

/// Ranks that a culprit names.
const RANKS_MAX: usize = 4;

/// Characters of the command, and of the last sentence. Both are for people who look for a job.
const COMMAND_MAX: usize = 120;
const MESSAGE_MAX: usize = 160;

/// Characters of an image's name. The digest at its end is 71 of them.
const IMAGE_MAX: usize = 160;

/// Time, and the same time for each GPU that was held meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sum {
    #[serde(with = "micros")]
    pub time: Duration,
    #[serde(default, with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub gpu_time: Duration,
}

/// A node, and what its failures have cost the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Culprit {
    pub node: NodeName,
    /// The receipts that name it. A job of very many incidents keeps only the newest of them.
    pub incidents: u32,
    /// The ranks that failed there, as far as receipts name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// What its failures have cost: re-forms, and steps that were made again.
    #[serde(flatten)]
    pub sum: Sum,
}

/// What is left of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRecord {
    /// The number of the record. It grows with each record of a store. 0: the job is not over, and this is
    /// what its record would be now.
    pub number: u64,
    pub uid: JobUid,
    pub name: JobName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Actor>,
    /// The queue that it named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Equal hashes: the same spec, values of variables left aside. Another version of Muster may hash the
    /// same spec otherwise.
    pub spec_hash: String,
    /// The command in one line, cut.
    pub command: String,
    /// The image of its pods. `None`: it had no pods of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When it gave the last GPUs back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Timestamp>,
    /// `None`: it is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    pub phase: Phase,
    pub reason: Reason,
    pub message: String,
    /// Members and GPUs of the last generation that trained.
    pub members: u32,
    pub gpus: u32,
    /// How many nodes it ever ran on, and the names of some of them.
    pub nodes_used: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    pub generations: u64,
    pub restarts: u32,
    pub incidents: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// Its time by state ([`State::name`](crate::fleet::time_account::State::name)), as its account has it. Empty: it was not counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<String, Sum>,
    /// The part of it that went into re-forms and repeated steps, by what caused them. The first start is
    /// not among them: it is no loss.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost: BTreeMap<String, Sum>,
    /// The nodes that cost it most, the dearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub culprits: Vec<Culprit>,
}

impl HistoryRecord {
    /// What would be left of the job if it ended now. `spent`: its time so far.
    pub fn of(job: &JobRecord, spent: &[Spent]) -> Self {
        let (mut states, mut lost) = (BTreeMap::new(), BTreeMap::new());
        for row in spent {
            add(&mut states, row.state.name().to_owned(), row);
            if let Some(cause) = row.state.cause().filter(|_| row.state.is_a_loss()) {
                add(&mut lost, format!("{cause:?}"), row);
            }
        }
        let trained = job.trained_last();
        let members = trained.map_or(0, |generation| {
            generation.members.iter().map(|share| share.size()).sum()
        });
        let gpus = trained.map_or(0, |generation| {
            let shares = generation.members.iter();
            shares.map(|share| share.gpus.len() as u32).sum()
        });
        Self {
            number: 0,
            uid: job.uid.clone(),
            name: job.name.clone(),
            owner: job.owner.clone(),
            queue: job.spec.queue.clone(),
            spec_hash: hash(&job.spec),
            command: cut(&command(&job.spec), COMMAND_MAX),
            image: job.spec.template.as_deref().and_then(image),
            created: job.created,
            started: job.first_started,
            held_until: job.time.as_ref().and_then(|account| account.held_until),
            finished: job.finished.filter(|_| job.is_over()),
            phase: job.phase,
            reason: job.reason,
            message: cut(&job.message, MESSAGE_MAX),
            members,
            gpus,
            nodes_used: u32::try_from(job.nodes_used.len()).unwrap_or(u32::MAX),
            nodes: job.nodes_used.iter().take(NODES_MAX).cloned().collect(),
            generations: job.last_generation.0,
            restarts: job.restart_count,
            incidents: job
                .incidents_dropped
                .saturating_add(job.incidents.len() as u32),
            last_step: job.last_step,
            states,
            lost,
            culprits: culprits(job),
        }
    }

    /// All time that was counted.
    pub fn life(&self) -> Sum {
        self.states.values().fold(Sum::default(), Sum::plus)
    }

    /// The time in one state.
    pub fn in_state(&self, state: &str) -> Sum {
        self.states.get(state).copied().unwrap_or_default()
    }

    /// How long it had nodes: its life without the time in which it waited for them. Where nothing was counted, from its
    /// first start to its end.
    pub fn ran(&self) -> Duration {
        if self.states.is_empty() {
            let whole = self.started.zip(self.finished);
            return whole.map_or(Duration::ZERO, |(from, to)| to.since(from));
        }
        let with_nodes = |state: &&String| !matches!(state.as_str(), "queued" | "waiting");
        let states = self.states.keys().filter(with_nodes);
        states.map(|state| self.in_state(state).time).sum()
    }

    /// All time that went into re-forms and repeated steps.
    pub fn lost(&self) -> Sum {
        self.lost.values().fold(Sum::default(), Sum::plus)
    }

    /// Who submitted the job, for people. Empty: nobody knows.
    pub fn owner_in_words(&self) -> String {
        let owner = self.owner.as_ref();
        owner.map(ToString::to_string).unwrap_or_default()
    }

    /// As [`goodput`](crate::fleet::time_account::goodput) of the job's account.
    pub fn goodput(&self) -> Option<f64> {
        let counts = |state: &&String| !matches!(state.as_str(), "queued" | "doubted");
        let known: Duration = self
            .states
            .keys()
            .filter(counts)
            .map(|it| self.in_state(it).time)
            .sum();
        let training = self.in_state("training").time.as_secs_f64();
        (!known.is_zero()).then(|| training / known.as_secs_f64())
    }

    /// Whether this node is among those that the record names.
    pub fn names(&self, node: &NodeName) -> bool {
        self.nodes.contains(node) || self.culprits.iter().any(|one| one.node == *node)
    }

    /// Whether it ran on more nodes than it names.
    pub fn ran_on_more(&self) -> bool {
        self.nodes_used as usize > self.nodes.len()
    }
}

impl Sum {
    pub fn plus(self, other: &Sum) -> Sum {
        Sum {
            time: self.time.saturating_add(other.time),
            gpu_time: self.gpu_time.saturating_add(other.gpu_time),
        }
    }
}

fn add(sums: &mut BTreeMap<String, Sum>, key: String, row: &Spent) {
    let sum = sums.entry(key).or_default();
    *sum = sum.plus(&Sum {
        time: row.time,
        gpu_time: row.gpu_time,
    });
}

/// The nodes that the account blames, with what receipts say of each.
fn culprits(job: &JobRecord) -> Vec<Culprit> {
    let blamed = job.time.iter().flat_map(|account| &account.blamed);
    let mut all: Vec<Culprit> = blamed
        .map(|(node, cost)| {
            let own = |one: &&Incident| one.blames() == Some(node);
            let receipts: Vec<&Incident> = job.incidents.iter().filter(own).collect();
            let ranks: BTreeSet<u32> = receipts
                .iter()
                .filter_map(|one| rank(one.culprit.as_deref()?))
                .collect();
            Culprit {
                node: node.clone(),
                incidents: receipts.len() as u32,
                ranks: ranks.into_iter().take(RANKS_MAX).collect(),
                sum: Sum {
                    time: cost.time,
                    gpu_time: cost.gpu_time,
                },
            }
        })
        .collect();
    let dear = |one: &Culprit| (one.sum.gpu_time, one.sum.time);
    all.sort_by(|a, b| dear(b).cmp(&dear(a)).then_with(|| a.node.cmp(&b.node)));
    all.truncate(CULPRITS_MAX);
    all
}

/// The rank of `rank 3 on b`.
fn rank(culprit: &str) -> Option<u32> {
    let number = culprit.strip_prefix("rank ")?;
    number.split(' ').next()?.parse().ok()
}

/// What the job ran, as somebody would type it: its own words, or those of its first role.
fn command(spec: &JobSpec) -> String {
    let of_role = spec.roles.first();
    let own = spec.command.iter().chain(&spec.args);
    let words: Vec<&str> = match of_role {
        Some(role) if spec.args.is_empty() => role
            .command
            .iter()
            .chain(&role.args)
            .map(String::as_str)
            .collect(),
        _ => own.map(String::as_str).collect(),
    };
    words.join(" ")
}

/// The first line of a text, cut with a mark.
fn cut(text: &str, most: usize) -> String {
    let first = text.lines().next().unwrap_or_default();
    let is_whole = first.len() == text.trim_end().len() && first.chars().count() <= most;
    let mut kept: String = first
        .chars()
        .take(if is_whole { most } else { most - 3 })
        .collect();
    if !is_whole {
        kept.push_str("...");
    }
    kept
}

/// The image of the first container of a pod's template, which is JSON.
fn image(template: &str) -> Option<String> {
    const KEY: &str = "\"image\":\"";
    let containers = &template[template.find("\"containers\":[")?..];
    let value = &containers[containers.find(KEY)? + KEY.len()..];
    Some(cut(value.split('"').next()?, IMAGE_MAX))
}

/// FNV-1a of all that the spec says, but for the values of variables and what a template says besides its image:
/// they may be secrets, and whoever sees a hash could try them out.
pub(crate) fn hash(spec: &JobSpec) -> String {
    let mut spec = spec.clone();
    // One that was placed once says who decided it. One that waits is to be found equal to it.
    if spec.gpus == Some(GpusSaid::Open) {
        spec.gpus = Some(GpusSaid::ByFleet);
    }
    let own = spec.env.iter_mut();
    let of_roles = spec.roles.iter_mut().flat_map(|role| &mut role.env);
    own.chain(of_roles)
        .for_each(|variable| variable.value = String::new());
    spec.template = spec.template.as_deref().and_then(image);
    let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
    // A hash takes every text.
    let _ = write!(fnv, "{spec:?}");
    format!("{:016x}", fnv.0)
}

struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::{
            job::tests::record,
            receipt::{Cause, Charged},
            time_account::{FormingPhase, State, TimeAccount},
        },
        spec::EnvVar,
    };

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn reforming(cause: Cause) -> State {
        State::Reforming {
            cause,
            phase: FormingPhase::Stop,
        }
    }

    /// A job of two GPUs that started for 10 s, trained for 100 s, lost node `bad` for 5 s and a scale for 3 s.
    fn job() -> JobRecord {
        let mut job = record();
        let mut account = TimeAccount::begun(at(0));
        account.enter(at(2), reforming(Cause::FirstStart), 2);
        account.enter(at(12), State::Training, 2);
        account.enter(at(112), reforming(Cause::NodeLost), 2);
        account.blame(Some("bad".into()));
        account.enter(at(117), State::Training, 2);
        account.enter(at(117), reforming(Cause::Scaled), 2);
        account.blame(None);
        account.enter(at(120), State::Stopping, 2);
        account.close(at(121));
        job.time = Some(account);
        job.open_incident(Incident {
            cause: Cause::NodeLost,
            charged: Charged::Node,
            node: Some("bad".into()),
            culprit: Some("rank 3 on bad".into()),
            ..Incident::at(at(112))
        });
        (job.phase, job.reason) = (Phase::Succeeded, Reason::Completed);
        job.finished = Some(at(121));
        job
    }

    fn left_of(job: &JobRecord) -> HistoryRecord {
        let account = job.time.as_ref().unwrap();
        HistoryRecord::of(job, &account.until(at(121), None))
    }

    #[test]
    fn the_sums_are_those_of_the_account() {
        let record = left_of(&job());
        let all: Vec<(&str, u64, u64)> = record
            .states
            .iter()
            .map(|(state, sum)| (state.as_str(), sum.time.as_secs(), sum.gpu_time.as_secs()))
            .collect();
        let expected = [
            ("queued", 2, 0),
            ("recovering", 5, 10),
            ("resizing", 3, 6),
            ("starting", 10, 20),
            ("stopping", 1, 2),
            ("training", 100, 200),
        ];
        assert_eq!(all, expected);
        assert_eq!(record.life().time, Duration::from_secs(121));
        let account = job().time.unwrap();
        assert_eq!(
            record.goodput(),
            crate::fleet::time_account::goodput(&account.spent)
        );
        let lost: Vec<(&str, u64)> = record
            .lost
            .iter()
            .map(|(cause, sum)| (cause.as_str(), sum.time.as_secs()))
            .collect();
        assert_eq!(
            lost,
            [("NodeLost", 5), ("Scaled", 3)],
            "the first start is no loss"
        );
        let culprit = &record.culprits[0];
        assert_eq!(
            (
                culprit.node.as_str(),
                culprit.incidents,
                &culprit.ranks[..],
                culprit.sum.gpu_time.as_secs()
            ),
            ("bad", 1, &[3][..], 10)
        );
        assert_eq!(record.culprits.len(), 1);
    }

    #[test]
    fn a_record_is_about_a_kilobyte_whatever_the_job_was() {
        let mut job = job();
        job.spec.command = vec!["x".repeat(5_000)];
        job.message = format!("{}\nmore", "é".repeat(5_000));
        job.nodes_used = (0..5_000)
            .map(|n| NodeName::from(format!("gpu-node-{n:05}")))
            .collect();
        let account = job.time.as_mut().unwrap();
        for n in 0..50_u64 {
            account.open = TimeAccount::begun(at(121)).open;
            account.enter(at(121), reforming(Cause::NodeLost), 8);
            account.blame(Some(format!("gpu-node-{n:05}").into()));
            account.close(at(122 + n));
        }
        let record = left_of(&job);
        assert_eq!(
            (record.nodes.len(), record.culprits.len()),
            (NODES_MAX, CULPRITS_MAX)
        );
        assert!(record.ran_on_more() && record.command.ends_with("..."));
        let dear: Vec<&str> = record
            .culprits
            .iter()
            .map(|one| one.node.as_str())
            .collect();
        assert_eq!(
            dear[..2],
            ["gpu-node-00049", "gpu-node-00048"],
            "the dearest first"
        );
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.len() < 3_000, "{} bytes: {json}", json.len());
        assert_eq!(
            serde_json::from_str::<HistoryRecord>(&json).unwrap(),
            record
        );
        let usual = serde_json::to_string(&left_of(&super::tests::job())).unwrap();
        assert!(usual.len() < 1_200, "{} bytes: {usual}", usual.len());
    }

    #[test]
    fn a_hash_says_nothing_of_secrets_and_tells_specs_apart() {
        let variable = |value: &str| EnvVar {
            name: "TOKEN".into(),
            value: value.into(),
            ..EnvVar::default()
        };
        let mut job = job();
        job.spec.env = vec![variable("a")];
        let first = left_of(&job).spec_hash;
        job.spec.env = vec![variable("b")];
        assert_eq!(left_of(&job).spec_hash, first);
        job.spec.args.push("--fast".into());
        assert_ne!(left_of(&job).spec_hash, first);
    }

    #[test]
    fn the_image_is_that_of_the_first_container() {
        let template = r#"{"spec":{"containers":[{"env":[{"name":"image","value":"x"}],"image":"site/torch:2.8","name":"a"}]}}"#;
        assert_eq!(image(template).as_deref(), Some("site/torch:2.8"));
        assert_eq!(image("{}"), None);
    }
}
