//! What the results of the jobs say of each node, each pair and all of them.
//!
//! First each node by itself: one whose own result is wrong or missing is bad, and what it did together with others says
//! nothing of them. Then the pairs among the rest: a node is bad if it fails with two different partners of which one
//! works with somebody else; what fails and is not explained by a bad node is a bad pair. If nothing works with anything,
//! no node is to blame. Slowness is told in the same way, by medians.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Node, Own, Together, Trial};
use crate::id::NodeName;

/// A median says nothing of fewer.
const FEWEST: usize = 3;

/// Two nodes, in the order of their names.
pub(super) type Pair = (NodeName, NodeName);

pub(super) fn pair(one: &NodeName, other: &NodeName) -> Pair {
    match one <= other {
        true => (one.clone(), other.clone()),
        false => (other.clone(), one.clone()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Bad,
    Slow,
    NotChecked,
    Good,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Node(NodeName),
    Pair(NodeName, NodeName),
    /// The software or the network of all nodes.
    All,
}

/// The values behind a verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The best time of the node's matmul, and the median of the nodes of its model.
    pub matmul: Option<Duration>,
    pub matmul_median: Option<Duration>,
    /// The best bandwidth of the node or the pair, and the median of all pairs with GPUs.
    pub bytes_per_second: Option<u64>,
    pub bytes_per_second_median: Option<u64>,
    pub works_with: Vec<NodeName>,
    pub fails_with: Vec<NodeName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub subject: Subject,
    pub standing: Standing,
    /// One sentence, without the subject. Empty: there is nothing to say.
    pub reason: String,
    pub evidence: Evidence,
}

/// Pairs that work and pairs that do not, without those of which a node is bad by itself or not known.
#[derive(Debug, Default)]
pub(super) struct Ways {
    works: BTreeSet<Pair>,
    fails: BTreeSet<Pair>,
}

/// Who is to blame for the pairs that fail.
#[derive(Debug, Default)]
struct Blame {
    nodes: BTreeSet<NodeName>,
    pairs: BTreeSet<Pair>,
    all: bool,
}

impl Ways {
    pub(super) fn of(trials: &[Trial]) -> Self {
        let faults = faults(trials);
        let mut ways = Ways::default();
        for (pair, trial) in pairs(trials) {
            let is_out = |node| faults.contains_key(node);
            let unknown = |own: &Own| matches!(own, Own::Unknown(_));
            if is_out(&pair.0)
                || is_out(&pair.1)
                || trial.members.iter().any(|one| unknown(&one.own))
            {
                continue;
            }
            match trial.together {
                Together::Right { .. } => ways.works.insert(pair),
                Together::NotTried => false,
                _ => ways.fails.insert(pair),
            };
        }
        ways
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Pair> {
        self.works.iter().chain(&self.fails)
    }

    /// It fails with a partner and works with nobody.
    pub(super) fn is_doubtful(&self, node: &NodeName) -> bool {
        !partners(&self.fails, node).is_empty() && partners(&self.works, node).is_empty()
    }

    fn blame(&self) -> Blame {
        let failing: BTreeSet<&NodeName> = self.fails.iter().flat_map(|(a, b)| [a, b]).collect();
        let mut blame = Blame::default();
        for node in &failing {
            let fails_with = partners(&self.fails, node);
            let works_elsewhere = |partner: &&NodeName| {
                let mut others = partners(&self.works, partner);
                others.remove(node);
                !others.is_empty()
            };
            let is_in_each = self.fails.iter().all(|(a, b)| a == *node || b == *node);
            let is_alone = self.works.is_empty() && is_in_each;
            if fails_with.len() > 1 && (is_alone || fails_with.iter().any(works_elsewhere)) {
                blame.nodes.insert((*node).clone());
            }
        }
        blame.all = self.works.is_empty() && failing.len() > 2 && blame.nodes.is_empty();
        let unexplained = { self.fails.iter() }
            .filter(|(a, b)| !blame.all && !blame.nodes.contains(a) && !blame.nodes.contains(b));
        blame.pairs = unexplained.cloned().collect();
        blame
    }
}

fn partners<'a>(pairs: &'a BTreeSet<Pair>, node: &NodeName) -> BTreeSet<&'a NodeName> {
    let other = |(a, b): &'a Pair| match (a == node, b == node) {
        (true, _) => Some(b),
        (_, true) => Some(a),
        _ => None,
    };
    pairs.iter().filter_map(other).collect()
}

fn pairs(trials: &[Trial]) -> impl Iterator<Item = (Pair, &Trial)> {
    trials.iter().filter_map(|trial| match &trial.members[..] {
        [one, other] => Some((pair(&one.node, &other.node), trial)),
        _ => None,
    })
}

/// What is wrong with nodes by themselves.
fn faults(trials: &[Trial]) -> BTreeMap<NodeName, String> {
    let mut faults = BTreeMap::new();
    for member in trials.iter().flat_map(|trial| &trial.members) {
        let fault = match &member.own {
            Own::Wrong(how) => format!("its matmul gives a wrong result: {how}"),
            Own::Failed(how) => format!("its matmul fails: {how}"),
            Own::Silent => "its matmul had no result when the time was over".to_owned(),
            Own::Right { .. } | Own::Unknown(_) => continue,
        };
        faults.entry(member.node.clone()).or_insert(fault);
    }
    faults
}

/// The verdict on each node, in their order, and before them those on pairs and on all.
pub fn verdicts(nodes: &[Node], trials: &[Trial]) -> Vec<Verdict> {
    let faults = faults(trials);
    let ways = Ways::of(trials);
    let (speeds, bandwidths) = (Speeds::of(nodes, trials), bandwidths(trials));
    // CPUs are busy with other things, and so are the threads that reduce on them.
    let mut judged = bandwidths.clone();
    judged.retain(|pair, _| has_gpus(nodes, pair));
    let slow = slow_ways(&judged);
    let (blame, blame_slow) = (ways.blame(), slow.blame());
    let all = all(nodes, &faults, &blame);
    let usual = median(judged.values().copied().collect());
    let mut told: Vec<Verdict> = all.clone().into_iter().collect();
    for (pair, standing) in { blame.pairs.iter().map(|pair| (pair, Standing::Bad)) }
        .chain(blame_slow.pairs.iter().map(|pair| (pair, Standing::Slow)))
    {
        let own = bandwidths.get(pair).copied();
        let reason = match standing {
            Standing::Bad => pair_reason(pair, &ways, trials),
            _ => format!(
                "the network between {} and {}: {}, less than half of the median of all pairs, {}",
                pair.0,
                pair.1,
                rate(own.unwrap_or_default()),
                rate(usual.unwrap_or_default())
            ),
        };
        told.push(Verdict {
            subject: Subject::Pair(pair.0.clone(), pair.1.clone()),
            standing,
            reason,
            evidence: Evidence {
                bytes_per_second: own,
                bytes_per_second_median: usual,
                ..Evidence::default()
            },
        });
    }
    for node in nodes {
        let mut evidence = speeds.evidence(node);
        evidence.works_with = named(&partners(&ways.works, &node.name));
        evidence.fails_with = named(&failing_with(trials, &node.name));
        let own =
            |((a, b), rate): (&Pair, &u64)| (*a == node.name || *b == node.name).then_some(*rate);
        evidence.bytes_per_second = bandwidths.iter().filter_map(own).max();
        evidence.bytes_per_second_median = usual;
        let (standing, reason) = match faults.get(&node.name) {
            _ if all.is_some() => (
                Standing::NotChecked,
                "all fail, so nothing is said of this node".to_owned(),
            ),
            Some(fault) => (Standing::Bad, fault.clone()),
            None if blame.nodes.contains(&node.name) => {
                (Standing::Bad, fails_with(&node.name, &ways, trials))
            }
            None => speeds
                .slow(node)
                .or_else(|| slow_link(&node.name, &blame_slow, &slow))
                .map_or_else(
                    || rest(&node.name, &ways, &blame, trials),
                    |reason| (Standing::Slow, reason),
                ),
        };
        told.push(Verdict {
            subject: Subject::Node(node.name.clone()),
            standing,
            reason,
            evidence,
        });
    }
    told
}

/// Whether all fail, so that no node is to blame.
fn all(nodes: &[Node], faults: &BTreeMap<NodeName, String>, blame: &Blame) -> Option<Verdict> {
    let alone = nodes.len() > 1 && nodes.iter().all(|node| faults.contains_key(&node.name));
    let reason = match (alone, blame.all) {
        (true, _) => {
            let first = nodes.first().and_then(|node| faults.get(&node.name));
            format!(
                "all nodes fail by themselves, which is the software of all rather than each of them: {}",
                first.map_or("", String::as_str)
            )
        }
        (_, true) => "no two nodes work together: the software or the network of all".to_owned(),
        _ => return None,
    };
    Some(Verdict {
        subject: Subject::All,
        standing: Standing::Bad,
        reason,
        evidence: Evidence::default(),
    })
}

/// A node that is neither bad nor slow.
fn rest(node: &NodeName, ways: &Ways, blame: &Blame, trials: &[Trial]) -> (Standing, String) {
    let owns = || {
        let members = trials.iter().flat_map(|trial| &trial.members);
        members
            .filter(|member| member.node == *node)
            .map(|member| &member.own)
    };
    let is_right = owns().any(|own| matches!(own, Own::Right { .. }));
    if !is_right {
        let why = owns().find_map(|own| match own {
            Own::Unknown(why) => Some(why.clone()),
            _ => None,
        });
        let why = why.unwrap_or_else(|| "no job of the check ran there".to_owned());
        return (Standing::NotChecked, why);
    }
    let works = !partners(&ways.works, node).is_empty();
    let in_pair = blame.pairs.iter().any(|(a, b)| a == node || b == node);
    let bad = failing_with(trials, node);
    match (works, in_pair, bad.is_empty()) {
        (false, true, _) => (
            Standing::NotChecked,
            "it works alone, and was tried with no node that works with another; check it together with more nodes".to_owned(),
        ),
        (false, false, false) => (
            Standing::NotChecked,
            format!(
                "it works alone; those that it was tried with are bad themselves ({}); check it with another node",
                listed(&bad)
            ),
        ),
        _ => (Standing::Good, String::new()),
    }
}

/// Why a node that fails with several partners is bad.
fn fails_with(node: &NodeName, ways: &Ways, trials: &[Trial]) -> String {
    let with = partners(&ways.fails, node);
    let how = with
        .iter()
        .find_map(|other| how(&pair(node, other), trials))
        .unwrap_or_default();
    format!(
        "it fails with {} different partners ({}): {how}",
        with.len(),
        listed(&with)
    )
}

fn pair_reason(pair: &Pair, ways: &Ways, trials: &[Trial]) -> String {
    let (a, b) = pair;
    let doubtful: Vec<&NodeName> = [a, b]
        .into_iter()
        .filter(|node| partners(&ways.works, node).is_empty())
        .collect();
    let beside = match doubtful[..] {
        [] => "each works with another node".to_owned(),
        [one] => format!("{one} works alone, and was tried with no other node"),
        _ => "each works alone; a third node would tell whether it is one of them".to_owned(),
    };
    let how = how(pair, trials).unwrap_or_default();
    format!("the network between {a} and {b}: {how}; {beside}")
}

/// How a pair has failed.
fn how(of: &Pair, trials: &[Trial]) -> Option<String> {
    pairs(trials)
        .filter(|(pair, _)| pair == of)
        .find_map(|(_, trial)| match &trial.together {
            Together::Wrong(how) => Some(format!("all-reduce gives a wrong result: {how}")),
            Together::Failed(how) => Some(format!("all-reduce fails: {how}")),
            Together::Silent => Some("all-reduce had no result when the time was over".to_owned()),
            Together::Right { .. } | Together::NotTried => None,
        })
}

/// The partners with which a node has no right result, whoever is to blame.
fn failing_with<'a>(trials: &'a [Trial], node: &NodeName) -> BTreeSet<&'a NodeName> {
    let fails =
        |trial: &&Trial| !matches!(trial.together, Together::Right { .. } | Together::NotTried);
    let with = trials.iter().filter(|trial| {
        trial.members.len() == 2 && trial.members.iter().any(|member| member.node == *node)
    });
    with.filter(fails)
        .flat_map(|trial| trial.members.iter().map(|member| &member.node))
        .filter(|other| *other != node)
        .collect()
}

fn named(nodes: &BTreeSet<&NodeName>) -> Vec<NodeName> {
    nodes.iter().map(|node| (*node).clone()).collect()
}

fn listed(nodes: &BTreeSet<&NodeName>) -> String {
    let names: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
    names.join(", ")
}

/// The times of the nodes' matmuls.
struct Speeds {
    own: BTreeMap<NodeName, Duration>,
    medians: BTreeMap<String, (usize, Duration)>,
}

impl Speeds {
    fn of(nodes: &[Node], trials: &[Trial]) -> Self {
        let mut own: BTreeMap<NodeName, Duration> = BTreeMap::new();
        for member in trials.iter().flat_map(|trial| &trial.members) {
            if let Own::Right { time } = member.own {
                // A neighbour may have slowed one of them.
                let best = own.entry(member.node.clone()).or_insert(time);
                *best = time.min(*best);
            }
        }
        let mut models: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        for node in nodes {
            let Some(model) = &node.model else { continue };
            let times = models.entry(model.clone()).or_default();
            times.extend(own.get(&node.name));
        }
        let medians = models.into_iter().filter_map(|(model, times)| {
            let count = times.len();
            Some((model, (count, median(times)?)))
        });
        Speeds {
            medians: medians.collect(),
            own,
        }
    }

    fn evidence(&self, node: &Node) -> Evidence {
        Evidence {
            matmul: self.own.get(&node.name).copied(),
            matmul_median: (node.model.as_ref())
                .and_then(|model| self.medians.get(model))
                .map(|(_, median)| *median),
            ..Evidence::default()
        }
    }

    /// Why the node is slow. `None`: it is not.
    fn slow(&self, node: &Node) -> Option<String> {
        let model = node.model.as_ref()?;
        let (count, median) = self.medians.get(model)?;
        let own = self.own.get(&node.name)?;
        (*count >= FEWEST && *own > *median * 2).then(|| {
            format!(
                "its matmul takes {:.1} ms, {:.1} times the median of {count} nodes ({}), {:.1} ms",
                own.as_secs_f64() * 1e3,
                own.as_secs_f64() / median.as_secs_f64().max(f64::MIN_POSITIVE),
                model,
                median.as_secs_f64() * 1e3
            )
        })
    }
}

/// The best bandwidth of each pair.
fn bandwidths(trials: &[Trial]) -> BTreeMap<Pair, u64> {
    let mut all: BTreeMap<Pair, u64> = BTreeMap::new();
    for (pair, trial) in pairs(trials) {
        if let Together::Right { bytes_per_second } = trial.together {
            let best = all.entry(pair).or_default();
            *best = bytes_per_second.max(*best);
        }
    }
    all
}

fn has_gpus(nodes: &[Node], pair: &Pair) -> bool {
    let mut of_pair = nodes
        .iter()
        .filter(|node| node.name == pair.0 || node.name == pair.1);
    of_pair.all(|node| node.model.is_some())
}

/// Pairs below half of the median fail, in this sense, and all others work.
fn slow_ways(bandwidths: &BTreeMap<Pair, u64>) -> Ways {
    let Some(median) = median(bandwidths.values().copied().collect()) else {
        return Ways::default();
    };
    let judged = bandwidths.len() >= FEWEST;
    let (fails, works) = bandwidths
        .keys()
        .cloned()
        .partition(|pair| judged && bandwidths[pair] < median / 2);
    Ways { works, fails }
}

fn slow_link(node: &NodeName, blame: &Blame, slow: &Ways) -> Option<String> {
    let with = partners(&slow.fails, node);
    blame.nodes.contains(node).then(|| {
        format!(
            "with {} different partners ({}) it reduces at less than half of the median bandwidth",
            with.len(),
            listed(&with)
        )
    })
}

/// The lower of the two in the middle of an even number.
fn median<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}

fn rate(bytes_per_second: u64) -> String {
    match bytes_per_second {
        0..1_000_000_000 => format!("{:.0} MB/s", bytes_per_second as f64 / 1e6),
        _ => format!("{:.1} GB/s", bytes_per_second as f64 / 1e9),
    }
}
