//! Where the time of a job's life has gone. Each moment of it is in exactly one state, so the states
//! add up to the life.
//!
//! A job is *queued* until its first generation is decided. A start is *reforming* from its event to the
//! first step, divided by cause and phase. After that the job is *training*; steps that had been made
//! before and were lost are *repeating*. While nothing can be done it is *waiting*, and from the decision
//! of its end to the end it is *stopping*.
//!
//! The account keeps one sum for each state that is over, and the state that is not. It changes only when
//! the state does, so nothing is written while a job trains. A sum never falls and is never counted again:
//! what was a state's is decided once, when the state ends. `keep_time` says which state it is.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{fleet::receipt::Cause, id::NodeName, period::micros, time::Timestamp};

/// What a job does at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum State {
    /// It has had no generation yet.
    Queued,
    /// A generation has ended or is to begin, and no step is made.
    Reforming { cause: Cause, phase: FormingPhase },
    /// It makes steps that it has not made before, so far as can be told.
    Training,
    /// It makes steps again that an earlier generation had made and lost.
    Repeating { cause: Cause },
    /// Nothing can be done.
    Waiting { wait: Wait },
    /// It is being ended.
    Stopping,
    /// There is evidence against its generation, and whether it trains is decided later. Never stored.
    Doubted,
    /// A state that a later version wrote.
    #[serde(other)]
    Unknown,
}

/// The part of a re-form that is under way. They are the phases of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FormingPhase {
    Detect,
    Decide,
    Stop,
    Launch,
    Join,
    FirstStep,
    /// A phase that a later version wrote.
    #[serde(other)]
    Unknown,
}

/// Why nothing can be done for a job that has had a generation. Each is a reason of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Wait {
    BelowMinimum,
    BackOff,
    Suspended,
    Fencing,
    Unreachable,
    /// A reason that a later version wrote.
    #[serde(other)]
    Unknown,
}

impl State {
    /// The state as one word. A re-form is told by what began it: the first start, a failure, or a
    /// change that was wanted.
    pub fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Reforming {
                cause: Cause::FirstStart,
                ..
            } => "starting",
            State::Reforming { cause, .. } if cause.is_failure() => "recovering",
            State::Reforming { .. } => "resizing",
            State::Training => "training",
            State::Repeating { .. } => "repeating",
            State::Waiting { .. } => "waiting",
            State::Stopping => "stopping",
            State::Doubted => "doubted",
            State::Unknown => "unknown",
        }
    }

    /// All words of [`State::name`], in the order of a job's life.
    pub const NAMES: [&str; 10] = [
        "queued",
        "starting",
        "training",
        "repeating",
        "recovering",
        "resizing",
        "waiting",
        "stopping",
        "doubted",
        "unknown",
    ];

    /// What began it, if that is known.
    pub fn cause(self) -> Option<Cause> {
        match self {
            State::Reforming { cause, .. } | State::Repeating { cause } => Some(cause),
            _ => None,
        }
    }

    /// Whether time in it is lost to what began it. The first start is no loss.
    pub fn is_a_loss(self) -> bool {
        self.cause().is_some_and(|cause| cause != Cause::FirstStart)
    }

    /// Whether ranks make steps, so that evidence may show later that they did not.
    fn makes_steps(self) -> bool {
        matches!(self, State::Training | State::Repeating { .. })
    }
}

impl FormingPhase {
    /// The phase as a receipt names it.
    pub fn name(self) -> &'static str {
        match self {
            FormingPhase::Detect => "detect",
            FormingPhase::Decide => "decide",
            FormingPhase::Stop => "stop",
            FormingPhase::Launch => "launch",
            FormingPhase::Join => "join",
            FormingPhase::FirstStep => "first step",
            FormingPhase::Unknown => "unknown",
        }
    }
}

/// The time in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spent {
    #[serde(flatten)]
    pub state: State,
    #[serde(with = "micros")]
    pub time: Duration,
    /// The same time for each GPU that the job held.
    #[serde(default, with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub gpu_time: Duration,
}

/// The state that a job is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Open {
    #[serde(flatten)]
    pub state: State,
    pub since: Timestamp,
    /// The GPUs that the job holds.
    #[serde(default)]
    pub gpus: u32,
    /// No step was seen: the ranks have met, or have run for so long, and the job has never shown one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unshown: bool,
}

/// What re-forms and repeated steps have cost because of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blamed {
    #[serde(default, with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub gpu_time: Duration,
    #[serde(with = "micros")]
    pub time: Duration,
}

/// How many nodes an account blames. If there are more, the one that cost least makes room.
const BLAMED_MAX: usize = 16;

/// The whole account of a job. 150 sums of at most 100 bytes are the most: 21 causes with six phases each,
/// 21 causes with repeated steps, and the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimeAccount {
    /// From when on time is counted. If that is later than the submission, a coordinator that kept no
    /// account had the job before.
    pub since: Timestamp,
    /// The states that are over, in the order of [`State`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<Spent>,
    /// `None`: the job is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
    /// When the last state ended, if the job is over. This may be later than the job's end: a coordinator's
    /// clock was ahead, and the next one's is right again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Timestamp>,
    /// When a state ended last in which it held GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Timestamp>,
    /// The last step that was lost. Steps up to it are made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_to: Option<u64>,
    /// The node whose failure began the open state. `None`: no node's did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<NodeName>,
    /// The part of the states that are over that is due to nodes. It is part of their sums.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blamed: BTreeMap<NodeName, Blamed>,
}

impl TimeAccount {
    /// An account that begins now, of a job that is queued.
    pub fn begun(now: Timestamp) -> Self {
        Self {
            since: now,
            spent: Vec::new(),
            open: Some(Open {
                state: State::Queued,
                since: now,
                gpus: 0,
                unshown: false,
            }),
            closed: None,
            held_until: None,
            repeats_to: None,
            culprit: None,
            blamed: BTreeMap::new(),
        }
    }

    /// The open state is due to this node, or to none.
    pub(crate) fn blame(&mut self, node: Option<NodeName>) {
        self.culprit = node;
    }

    /// The job is in this state since then. The time until then belongs to the state before.
    pub(crate) fn enter(&mut self, at: Timestamp, state: State, gpus: u32) {
        if let Some(since) = self.end_state(at) {
            self.open = Some(Open {
                state,
                since,
                gpus,
                unshown: false,
            });
        }
    }

    /// The job holds so many GPUs since then, and is in the same state.
    pub(crate) fn hold(&mut self, at: Timestamp, gpus: u32) {
        if let Some(open) = self.open.filter(|open| open.gpus != gpus)
            && let Some(since) = self.end_state(at)
        {
            self.open = Some(Open {
                since,
                gpus,
                ..open
            });
        }
    }

    /// The open state was in truth another one, all the time since it began.
    pub(crate) fn correct(&mut self, state: State) {
        if let Some(open) = &mut self.open {
            (open.state, open.unshown) = (state, false);
        }
    }

    /// The job is over.
    pub(crate) fn close(&mut self, at: Timestamp) {
        if let Some(at) = self.end_state(at) {
            self.closed = Some(at);
        }
    }

    /// Ends the open state, and returns when. A state that began later than `at` has taken no time.
    fn end_state(&mut self, at: Timestamp) -> Option<Timestamp> {
        let open = self.open.take()?;
        let at = at.max(open.since);
        if open.gpus > 0 {
            self.held_until = Some(at);
        }
        add(&mut self.spent, open.state, at.since(open.since), open.gpus);
        self.add_blame(open, at.since(open.since));
        Some(at)
    }

    /// Adds the time of a state that is over to what its culprit has cost.
    fn add_blame(&mut self, open: Open, time: Duration) {
        let culprit = self.culprit.clone().filter(|_| open.state.is_a_loss());
        let Some(node) = culprit.filter(|_| !time.is_zero()) else {
            return;
        };
        let cost = self.blamed.entry(node.clone()).or_default();
        cost.time += time;
        cost.gpu_time = cost.gpu_time.saturating_add(time.saturating_mul(open.gpus));
        if self.blamed.len() > BLAMED_MAX {
            let others = self.blamed.iter().filter(|(name, _)| **name != node);
            let least = others.min_by_key(|(_, cost)| **cost);
            if let Some(least) = least.map(|(name, _)| name.clone()) {
                self.blamed.remove(&least);
            }
        }
    }

    /// All time from the beginning until `now`, by state. It adds up to that. `doubted`: since when
    /// there is evidence against the current generation. Whether it has trained since then is not known
    /// yet, so that time counts for neither.
    pub fn until(&self, now: Timestamp, doubted: Option<Timestamp>) -> Vec<Spent> {
        let mut all = self.spent.clone();
        if let Some(open) = self.open {
            let now = now.max(open.since);
            let doubted = doubted.filter(|_| open.state.makes_steps());
            let proven = doubted.map_or(now, |at| at.max(open.since).min(now));
            add(&mut all, open.state, proven.since(open.since), open.gpus);
            add(&mut all, State::Doubted, now.since(proven), open.gpus);
        }
        all
    }
}

fn add(all: &mut Vec<Spent>, state: State, time: Duration, gpus: u32) {
    if time.is_zero() {
        return;
    }
    let at = match all.binary_search_by_key(&state, |spent| spent.state) {
        Ok(at) => at,
        Err(at) => {
            let none = Duration::ZERO;
            let (time, gpu_time) = (none, none);
            all.insert(
                at,
                Spent {
                    state,
                    time,
                    gpu_time,
                },
            );
            at
        }
    };
    all[at].time += time;
    all[at].gpu_time = all[at].gpu_time.saturating_add(time.saturating_mul(gpus));
}

/// The share of the time since the first generation was decided in which new steps were made. `None`: there was
/// no such time yet. Google's ML Goodput Measurement has the same as runtime goodput; steps that were
/// made again do not count.
pub fn goodput(spent: &[Spent]) -> Option<f64> {
    let sum = |wanted: fn(State) -> bool| -> Duration {
        let rows = spent.iter().filter(|row| wanted(row.state));
        rows.map(|row| row.time).sum()
    };
    let known = sum(|state| !matches!(state, State::Queued | State::Doubted));
    let training = sum(|state| state == State::Training);
    (!known.is_zero()).then(|| training.as_secs_f64() / known.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn total(spent: &[Spent]) -> Duration {
        spent.iter().map(|row| row.time).sum()
    }

    const STOP: State = State::Reforming {
        cause: Cause::NodeLost,
        phase: FormingPhase::Stop,
    };

    #[test]
    fn a_state_has_the_time_until_the_next_one_begins() {
        let mut account = TimeAccount::begun(at(100));
        account.enter(at(110), State::Training, 8);
        account.enter(at(150), STOP, 8);
        account.enter(at(153), State::Training, 4);
        let spent = account.until(at(163), None);
        let of = |state: State| {
            let row = spent.iter().find(|row| row.state == state);
            row.map(|row| (row.time.as_secs(), row.gpu_time.as_secs()))
        };
        assert_eq!(of(State::Queued), Some((10, 0)));
        assert_eq!(of(State::Training), Some((50, 40 * 8 + 10 * 4)));
        assert_eq!(of(STOP), Some((3, 24)));
        assert_eq!(goodput(&spent), Some(50.0 / 53.0));
        account.close(at(163));
        assert_eq!(account.closed, Some(at(163)));
        assert_eq!(account.until(at(999), None), spent, "it is over");
        account.enter(at(999), State::Training, 8);
        assert_eq!(account.until(at(999), None), spent, "and stays over");
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_state_shorter_than_nothing() {
        let mut account = TimeAccount::begun(at(100));
        account.enter(at(7_000), State::Training, 1);
        account.close(at(120));
        assert_eq!(account.closed, Some(at(7_000)));
        assert_eq!(total(&account.spent), Duration::from_secs(6_900));
    }

    #[test]
    fn what_is_doubted_is_neither_trained_nor_lost() {
        let mut account = TimeAccount::begun(at(0));
        account.enter(at(0), State::Training, 2);
        let spent = account.until(at(60), Some(at(45)));
        let named: Vec<_> = spent
            .iter()
            .map(|row| (row.state.name(), row.time.as_secs()))
            .collect();
        assert_eq!(named, [("training", 45), ("doubted", 15)]);
        assert_eq!(goodput(&spent), Some(1.0));
        // It had broken at 40, as was found out at 60.
        account.enter(at(40), STOP, 2);
        let spent = account.until(at(60), None);
        assert_eq!(total(&spent), Duration::from_secs(60));
        assert_eq!(goodput(&spent), Some(40.0 / 60.0));
    }

    #[test]
    fn an_account_is_stored_and_one_of_a_later_version_is_read() {
        let mut account = TimeAccount::begun(at(1));
        account.enter(at(2), STOP, 2);
        account.enter(
            at(4),
            State::Waiting {
                wait: Wait::BackOff,
            },
            0,
        );
        let text = serde_json::to_string(&account).unwrap();
        assert_eq!(
            text,
            r#"{"since":1000000,"spent":[{"state":"queued","time":1000000},{"state":"reforming","cause":"NodeLost","phase":"stop","time":2000000,"gpuTime":4000000}],"open":{"state":"waiting","wait":"BackOff","since":4000000,"gpus":0},"heldUntil":4000000}"#
        );
        assert_eq!(serde_json::from_str::<TimeAccount>(&text).unwrap(), account);
        let later = text
            .replace("\"waiting\",\"wait\":\"BackOff\"", "\"later\"")
            .replace("\"stop\"", "\"other\"");
        let read: TimeAccount = serde_json::from_str(&later).unwrap();
        assert_eq!(read.open.map(|open| open.state), Some(State::Unknown));
        assert_eq!(total(&read.spent), Duration::from_secs(3));
    }

    #[test]
    fn what_a_node_has_cost_is_part_of_the_sums() {
        let mut account = TimeAccount::begun(at(0));
        let first = State::Reforming {
            cause: Cause::FirstStart,
            phase: FormingPhase::Launch,
        };
        account.blame(Some("n1".into()));
        account.enter(at(1), first, 2);
        account.enter(at(5), State::Training, 2);
        account.enter(at(9), STOP, 2);
        account.blame(Some("n1".into()));
        account.hold(at(10), 4);
        account.enter(
            at(12),
            State::Repeating {
                cause: Cause::NodeLost,
            },
            4,
        );
        account.enter(at(15), State::Training, 4);
        account.enter(at(20), STOP, 4);
        account.blame(None);
        account.close(at(30));
        let cost = account.blamed[&NodeName::from("n1")];
        let seconds = (cost.time.as_secs(), cost.gpu_time.as_secs());
        assert_eq!(
            seconds,
            (6, 2 + 8 + 12),
            "no start, no training, and nobody's loss"
        );
        assert_eq!(account.blamed.len(), 1);
    }

    #[test]
    fn of_many_nodes_the_dearest_are_kept() {
        let mut account = TimeAccount::begun(at(0));
        let mut now = 0;
        for n in 0..40_u64 {
            account.enter(at(now), STOP, 1);
            account.blame(Some(format!("n{n:02}").into()));
            now += 100 - n;
            account.enter(at(now), State::Training, 1);
        }
        let names: Vec<&str> = account.blamed.keys().map(NodeName::as_str).collect();
        assert_eq!(
            (names.len(), names[0], names[14]),
            (BLAMED_MAX, "n00", "n14")
        );
    }

    proptest! {
        /// Whatever moments it is told, in whatever order: nothing is lost or counted twice, and no sum falls.
        #[test]
        fn states_add_up_to_life(moments in proptest::collection::vec((0..100_u64, 0..4_usize, 0..9_u32), 1..40)) {
            let states = [State::Training, STOP, State::Stopping, State::Waiting { wait: Wait::Suspended }];
            let mut account = TimeAccount::begun(at(10));
            let mut before = account.spent.clone();
            for (moment, state, gpus) in moments {
                account.enter(at(moment), states[state], gpus);
                let open = account.open.expect("it is not over");
                prop_assert_eq!(total(&account.spent), open.since.since(at(10)));
                prop_assert_eq!(total(&account.until(at(200), Some(at(moment)))), Duration::from_secs(190));
                for old in &before {
                    let new = account.spent.iter().find(|row| row.state == old.state);
                    prop_assert!(new.is_some_and(|new| new.time >= old.time && new.gpu_time >= old.gpu_time));
                }
                before = account.spent.clone();
            }
        }
    }
}
