//! Incidents with what truly happened, against the verdict of [`blame`]. They are in `corpus.txt`, for readers who do not
//! know the rules.

use super::*;
use crate::run::{DueTo, RankException};

const INCIDENTS: &str = include_str!("corpus.txt");
const LEAST: usize = 108;

struct Incident {
    name: &'static str,
    members: usize,
    repeats: bool,
    facts: Vec<Evidence>,
    /// The cause, the payer, who did it, and of what kind it was.
    verdict: &'static str,
}

/// Splits `first second`.
fn cut(text: &'static str, at: &str) -> (&'static str, &'static str) {
    text.split_once(at)
        .unwrap_or_else(|| panic!("{text:?} has no {at:?}"))
}

fn incidents() -> Vec<Incident> {
    let mut all: Vec<Incident> = Vec::new();
    for line in INCIDENTS.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(told) = line.strip_prefix("  ") else {
            let (name, of) = cut(line, ": ");
            let (_, members) = cut(of, "; members ");
            all.push(Incident {
                name,
                members: members
                    .trim_end_matches(" repeats")
                    .parse()
                    .expect("the corpus is well formed"),
                repeats: members.ends_with(" repeats"),
                facts: Vec::new(),
                verdict: "",
            });
            continue;
        };
        let incident = all.last_mut().expect("an incident begins with its name");
        match told.strip_prefix("= ") {
            Some(verdict) => incident.verdict = verdict,
            None => incident.facts.push(fact(told, &incident.facts)),
        }
    }
    all
}

/// One fact. `before`: those told before it in the same incident.
fn fact(told: &'static str, before: &[Evidence]) -> Evidence {
    let (first, rest) = cut(told, " ");
    let (at, told) = match first.parse::<f64>() {
        Ok(seconds) => (Timestamp((seconds * 1e6) as u64), rest),
        Err(_) => (Timestamp::default(), told),
    };
    let (kind, rest) = cut(told, " ");
    let (subject, words) = rest.split_once(": ").unwrap_or((rest, ""));
    // An exception may end with its place.
    let (words, place) = match words.split_once(" @ ") {
        Some((words, place)) => (words, Some(place)),
        None => (words, None),
    };
    let error = (!words.is_empty()).then(|| words.to_owned());
    let exception = || {
        let (name, text) = words.split_once(": ").unwrap_or((words, ""));
        RankException {
            name: name.to_owned(),
            text: text.to_owned(),
            frames: place.iter().map(|place| place.to_string()).collect(),
            left_script: true,
        }
    };
    let end = |text: &str| match text.split_once(' ').expect("the corpus is well formed") {
        ("code", code) => Exit::Code(code.parse().expect("the corpus is well formed")),
        (_, signal) => Exit::Signal(signal.parse().expect("the corpus is well formed")),
    };
    let node = NodeName::from(
        subject
            .split(' ')
            .next()
            .expect("the corpus is well formed"),
    );
    let of_rank = |text: &'static str| -> (u32, NodeName, &'static str) {
        let (rank, on) = cut(text, " on ");
        let (node, rest) = on.split_once(' ').unwrap_or((on, ""));
        (
            rank.parse().expect("the corpus is well formed"),
            NodeName::from(node),
            rest,
        )
    };
    let victim = || Box::new(before.first().expect("a victim comes first").clone());
    match kind {
        "rank" => {
            let (rank, node, how) = of_rank(subject);
            let exit = end(how);
            Evidence::RankExit {
                node,
                rank,
                member: None,
                exit,
                class: exit.class(error.as_deref()),
                at,
                exception: place.map(|_| Box::new(exception())),
                error,
            }
        }
        "early" => {
            let (rank, node, _) = of_rank(subject);
            Evidence::EndedEarly {
                node,
                rank,
                member: None,
                at,
                victim: victim(),
            }
        }
        "awaited" => {
            let (rank, node, _) = of_rank(subject);
            Evidence::Awaited {
                ranks: vec![(rank, node)],
                at,
                victim: victim(),
            }
        }
        "torchrun" => {
            let (_, how) = cut(subject, " ");
            let (node, how) = cut(how, " ");
            Evidence::TorchrunFailed {
                node: NodeName::from(node),
                exit: end(how.trim_end_matches(" before ranks")),
                at,
                error,
                launched: !how.ends_with(" before ranks"),
            }
        }
        "stalled" => {
            let (of, by) = cut(subject, " by ");
            let named = of.starts_with("rank ").then(|| of.to_owned());
            Evidence::Stalled {
                node: NodeName::from(of.rsplit(' ').next().expect("the corpus is well formed")),
                symptom: named.clone(),
                named,
                of_node: ["signal", "device"].contains(&by),
                why: match by {
                    "signal" => Why::Stopped,
                    "device" => Why::Device,
                    "network" => Why::AllWait,
                    "other calls" => Why::Mismatch,
                    "its end" => Why::Ended,
                    "code" => Why::Elsewhere,
                    "no answer" => Why::Silent,
                    other => panic!("nothing stalls by {other:?}"),
                },
                sentence: subject.to_owned(),
                at,
            }
        }
        "silent" => Evidence::NodeSilent {
            node,
            lost: subject.ends_with(" lost"),
            since: at,
            heard: Some(at),
        },
        "gone" | "gone-unstarted" => Evidence::Vanished {
            node,
            at,
            launched: kind == "gone",
        },
        "refused" => Evidence::StartRefused {
            node,
            reason: words.to_owned(),
            due_to: match subject.split_once(" due to ").map(|(_, to)| to) {
                Some("a stranger") => DueTo::Stranger,
                Some("the node") => DueTo::Node,
                Some("the job") => DueTo::Job,
                Some("an account") => DueTo::Account,
                _ => DueTo::Unknown,
            },
        },
        "unhealthy" => Evidence::Unhealthy {
            node,
            check: cut(words, ": ").0.to_owned(),
            reason: words.to_owned(),
            at,
        },
        "leaving" => Evidence::Leaving {
            node,
            why: words.to_owned(),
            at,
        },
        "mixed" => Evidence::MixedNodes {
            node,
            how: words.to_owned(),
            at,
        },
        "forgot" => Evidence::ExitUnknown { node, at },
        "rebooted" => Evidence::NodeRebooted { node, at },
        "deleted" => Evidence::NodeDeleted { node, at },
        "fenced" => Evidence::Fenced { node, at },
        "late" => Evidence::StartTimeout { node, at },
        other => panic!("no fact is called {other:?}"),
    }
}

#[test]
fn each_incident_is_judged_as_it_was() {
    let all = incidents();
    let mut wrong = Vec::new();
    for incident in &all {
        // Nobody knows in which order facts are heard.
        let mut turned = incident.facts.clone();
        turned.reverse();
        for facts in [&incident.facts, &turned] {
            let found = blame(facts, incident.members, incident.repeats)
                .expect("the corpus is well formed");
            let who = found.culprit.as_deref().unwrap_or("nobody");
            let verdict = format!(
                "{:?} {:?} {who}; {:?}",
                found.cause, found.charged, found.class
            );
            if verdict != incident.verdict {
                let Incident {
                    name,
                    verdict: must,
                    ..
                } = incident;
                wrong.push(format!("{name}: {verdict}, and it was {must}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(all.len() >= LEAST, "{}", all.len());
}
