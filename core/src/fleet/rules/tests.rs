//! Rules beside an oracle that reads the documents anew, as words and numbers.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::{
    exit::Exit,
    fleet::{
        budget::{self, Restart},
        job::tests::record,
        policy::Policy,
    },
    period,
    spec::{RoleDocument, RuleDocument, SpecDocument},
    time::Timestamp,
};

/// What happened, as an incident tells it.
type Happened = (Cause, Charged, Option<Exit>);

fn blame((cause, charged, exit): Happened) -> Blame {
    Blame {
        cause,
        class: crate::error_class::ErrorClass::Unknown,
        message: String::new(),
        symptom: None,
        exit,
        rank: None,
        charged,
        culprit: None,
        node: None,
        collateral: Vec::new(),
        event_at: Timestamp(0),
        doubtful: false,
        raised: None,
    }
}

fn happenings() -> impl Strategy<Value = Happened> {
    let exits = prop_oneof![
        (1..=255i32).prop_map(Exit::Code),
        (1..=64i32).prop_map(Exit::Signal)
    ];
    let of_job = select(vec![Cause::WorkerFailed, Cause::WorkerKilled]);
    let others = select(vec![
        Cause::NodeLost,
        Cause::NodeRebooted,
        Cause::NodeUnhealthy,
        Cause::NodeDeleted,
        Cause::NodeLeaving,
        Cause::PeersLost,
        Cause::Fenced,
        Cause::MixedNodes,
        Cause::StartTimeout,
        Cause::WorkerKilled,
    ]);
    prop_oneof![
        (of_job, exits).prop_map(|(cause, exit)| (cause, Charged::Job, Some(exit))),
        (others.clone(), select(vec![Charged::Node, Charged::Nobody]))
            .prop_map(|(cause, charged)| (cause, charged, None)),
        others.prop_map(|cause| (cause, Charged::Job, None)),
    ]
}

fn documents() -> impl Strategy<Value = Vec<RuleDocument>> {
    let lines = select(vec![
        "exit codes 3: fail",
        "exit codes 1-127: restart, at most 2",
        "exit codes 128-255: restart",
        "exit codes 130,137,138,143: restart, at most 3 in 10s",
        "signal SIGKILL: restart, at most 1",
        "signal SIGUSR1, 12: succeed",
        "any signal: fail",
        "failure: fail",
        "failure: restart, at most 4 in 5s",
        "success of first: succeed",
        "exit codes 3-9 in role worker: restart, at most 1",
        "failure in role ps: fail",
        "nodeLost in role worker: fail",
        "nodeLost: fail",
        "nodeLost: ignore",
        "evicted: restart",
        "deadline: succeed",
    ]);
    vec(lines, 0..6).prop_map(|lines| {
        let read = |line| RuleDocument::read(line).unwrap();
        lines.into_iter().map(read).collect()
    })
}

/// The rules, unless one of them never decides.
fn checked(documents: &[RuleDocument]) -> Option<Vec<Rule>> {
    let role = |name: &str| RoleDocument {
        name: name.into(),
        args: vec!["train.py".into()],
        ..RoleDocument::default()
    };
    let spec = SpecDocument {
        framework: Some("tensorflow".into()),
        roles: ["worker", "ps"].map(role).into(),
        active_deadline_seconds: Some(1),
        rules: documents.to_vec(),
        ..SpecDocument::default()
    };
    let document = crate::spec::JobDocument {
        api_version: crate::spec::API_VERSION.into(),
        kind: crate::spec::KIND.into(),
        metadata: crate::spec::Metadata {
            name: "a".into(),
            namespace: None,
        },
        spec,
    };
    document.check().ok().map(|(_, spec)| spec.rules)
}

/// Whether a document means this, told by its words alone.
fn means(document: &RuleDocument, (cause, charged, exit): Happened, role: &str) -> bool {
    if document.role.as_deref().is_some_and(|of| of != role) {
        return false;
    }
    let of_job = charged == Charged::Job;
    let code = exit.map(|exit| match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
    });
    let named = |signal: i32| {
        let names = document.signals.iter();
        let mut numbers = names.map(|name| match name.as_str() {
            "SIGKILL" => 9,
            "SIGUSR1" => 10,
            number => number.parse().unwrap(),
        });
        document.signals.is_empty() || numbers.any(|number| number == signal)
    };
    match document.when.as_str() {
        "exit" => {
            let parts = document.codes.as_deref().unwrap().split(',');
            let mut all = parts.flat_map(|part| {
                let (low, high) = part.split_once('-').unwrap_or((part, part));
                low.parse::<i32>().unwrap()..=high.parse().unwrap()
            });
            of_job && code.is_some_and(|code| all.any(|one| one == code))
        }
        "signal" => of_job && matches!(exit, Some(Exit::Signal(signal)) if named(signal)),
        "failure" => of_job,
        "nodeLost" => {
            !of_job
                && ["NodeLost", "NodeRebooted", "NodeUnhealthy", "NodeDeleted"]
                    .contains(&format!("{cause:?}").as_str())
        }
        "evicted" => !of_job && cause == Cause::NodeLeaving,
        _ => false,
    }
}

/// The limits, kept as a person would with pencil and paper: every restart with its rule and time.
#[derive(Default)]
struct Pencil(Vec<(Option<usize>, u64)>);

impl Pencil {
    /// Whether one more restart is allowed at this second.
    fn allows(&mut self, rule: Option<(usize, &RuleDocument)>, at: u64) -> bool {
        let limited = rule.filter(|(_, rule)| rule.limit.is_some());
        let (account, limit, window) = match limited {
            Some((index, rule)) => {
                let window = rule
                    .within
                    .as_deref()
                    .map(|text| period::parse(text).unwrap());
                (Some(index), rule.limit.unwrap(), window)
            }
            None => (None, 3, Some(Duration::from_secs(3_600))),
        };
        let counts = |(of, then): &&(Option<usize>, u64)| {
            *of == account && window.is_none_or(|window| at - then < window.as_secs())
        };
        let fits = (self.0.iter().filter(counts).count() as i64) < limit;
        if fits {
            self.0.push((account, at));
        }
        fits
    }
}

proptest! {
    #[test]
    fn the_first_rule_that_means_it_decides(
        documents in documents(),
        happened in happenings(),
        role in select(vec!["worker", "ps"]),
    ) {
        let Some(rules) = checked(&documents) else { return Ok(()) };
        let expected = documents.iter().position(|document| means(document, happened, role));
        let found = of_break(&rules, &blame(happened), &[role]);
        prop_assert_eq!(found.as_ref().map(|ruling| ruling.index), expected);
        if let Some(ruling) = found {
            prop_assert_eq!(ruling.rule.then.name(), documents[ruling.index].then.as_str());
        }
    }

    #[test]
    fn limits_are_kept_as_with_pencil_and_paper(
        documents in documents(),
        failures in vec((happenings(), 0..8u64), 0..25),
    ) {
        let Some(rules) = checked(&documents) else { return Ok(()) };
        let mut job = record();
        job.spec.rules = rules;
        let (mut pencil, mut now) = (Pencil::default(), 0);
        for (happened, later) in failures {
            now += later;
            let at = Timestamp(now * 1_000_000);
            let blame = blame(happened);
            if blame.charged != Charged::Job {
                continue;
            }
            let ruling = of_break(&job.spec.rules, &blame, &["worker"]);
            if ruling.as_ref().is_some_and(|ruling| ruling.rule.then != Then::Restart) {
                continue;
            }
            let rule = documents.iter().enumerate().find(|(_, d)| means(d, happened, "worker"));
            let allowed = pencil.allows(rule, now);
            // A record that was stored and read is the same.
            let stored = serde_json::to_string(&job).unwrap();
            job = serde_json::from_str(&stored).unwrap();
            let before = job.failures_in_row;
            match budget::charge(&mut job, ruling.as_ref(), &Policy::default(), at) {
                Restart::At(then) => {
                    prop_assert!(allowed);
                    prop_assert!(then >= at && job.failures_in_row <= before + 1);
                }
                Restart::Spent(sentence) => {
                    prop_assert!(!allowed, "{}", sentence);
                    break;
                }
            }
        }
    }
}

#[test]
fn what_no_failure_is_matches_no_rule_about_one() {
    let rules = checked(&[RuleDocument::read("failure: fail").unwrap()]).unwrap();
    assert_eq!(
        of_break(&rules, &blame((Cause::NodeLost, Charged::Node, None)), &[]),
        None
    );
    let of_job = blame((Cause::StartFailed, Charged::Job, None));
    let ruling = of_break(&rules, &of_job, &[]).unwrap();
    assert_eq!(ruling.name(), "rule 1 (failure: fail)");
    assert!(!some_win(&rules));
}
