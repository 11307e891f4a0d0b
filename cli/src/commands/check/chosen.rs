//! Which nodes are checked, and why others are not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{check, id::NodeName};
use muster_foreign::names;
use muster_proto::v1::{self, NodeState};
use tokio::time::{Instant, sleep};

use super::{Nodes, jobs::Jobs};
use crate::{
    commands::get,
    context::Context,
    fail::Failure,
    output::{table::plain, words},
};

/// How often nodes are looked at that are waited for.
const LOOK: Duration = Duration::from_secs(2);

/// The nodes of one kind: those with GPUs are not tried together with those without.
pub(super) struct Group {
    pub(super) nodes: Vec<check::Node>,
    /// GPUs of each node that take part, in the same order. For all of them 0, or for none.
    pub(super) gpus: Vec<u32>,
}

impl Group {
    /// GPUs of each member of a job on these nodes.
    pub(super) fn gpus_of(&self, job: &[NodeName]) -> u32 {
        let all = self.nodes.iter().zip(&self.gpus);
        let own = all.filter(|(node, _)| job.contains(&node.name));
        own.map(|(_, gpus)| *gpus).min().unwrap_or(0)
    }
}

pub(super) struct Chosen {
    pub(super) groups: Vec<Group>,
    /// Nodes that are left out, and why.
    pub(super) left_out: Vec<(NodeName, String)>,
    pub(super) cordoned: BTreeSet<NodeName>,
}

/// The nodes that the command line names and that take a job now.
pub(super) async fn choose(
    cx: &Context,
    jobs: &Jobs<'_>,
    args: &Nodes,
    names: &[String],
) -> Result<Chosen, Failure> {
    let deadline = args.wait.map(|wait| Instant::now() + wait);
    let nodes = loop {
        let nodes = named(get::all_nodes(jobs.client).await?, names, args)?;
        let busy: Vec<&str> = { nodes.iter() }
            .filter(|node| why_busy(node).is_some())
            .map(|node| node.name.as_str())
            .collect();
        if busy.is_empty() || deadline.is_none_or(|deadline| Instant::now() >= deadline) {
            break nodes;
        }
        if cx.has_live_line() {
            cx.say_live(&format!("waiting for {}", plain(&busy.join(", "))));
        }
        sleep(LOOK).await;
    };
    let mut left_out = Vec::new();
    let mut fit: BTreeMap<u32, Vec<check::Node>> = BTreeMap::new();
    let mut cordoned = BTreeSet::new();
    for node in nodes {
        let name = NodeName::from(node.name.as_str());
        if node.cordon.is_some() {
            cordoned.insert(name.clone());
        }
        let has = u32::try_from(node.gpus.len()).unwrap_or(u32::MAX);
        let gpus = args.gpus_per_node.unwrap_or(has);
        // Whoever names a node, or asks for cordoned ones, wants to know whether it is well again.
        let also_cordoned = args.cordoned || !args.nodes.is_empty();
        if let Some(why) = why_not(&node, gpus, also_cordoned) {
            left_out.push((name, why));
            continue;
        }
        let model = match (gpus, node.gpus.first()) {
            (1.., Some(gpu)) => Some(gpu.model.clone()),
            _ => None,
        };
        let alike = fit.entry(gpus).or_default();
        alike.push(check::Node { name, model });
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for (gpus, alike) in fit {
        let names: Vec<NodeName> = alike.iter().map(|node| node.name.clone()).collect();
        let mut refusing = jobs.refusing(&names, gpus).await?;
        for node in alike {
            match refusing.remove(&node.name) {
                Some(why) => left_out.push((node.name, why)),
                None if gpus > 0 => with.push((gpus, node)),
                None => without.push((gpus, node)),
            }
        }
    }
    let groups = [with, without].into_iter().map(|mut nodes| {
        // Those that are alike are tried together.
        nodes.sort_by(|(one, a), (other, b)| {
            (one, &a.model, &a.name).cmp(&(other, &b.model, &b.name))
        });
        let (gpus, nodes) = nodes.into_iter().unzip();
        Group { nodes, gpus }
    });
    Ok(Chosen {
        groups: groups.filter(|group| !group.nodes.is_empty()).collect(),
        left_out,
        cordoned,
    })
}

/// The nodes that the command line names. Empty: it selects them.
pub(super) fn names(args: &Nodes) -> Result<Vec<String>, Failure> {
    if args.nodes.is_empty() && !args.all && args.selector.is_none() {
        return Err(Failure::usage(
            "which nodes? name them, select them with -l, or check --all",
        ));
    }
    let bare = |word| str::strip_prefix(word, "node/").unwrap_or(word);
    let mut names = names::expand_all(args.nodes.iter().map(|word| bare(word.as_str())))
        .map_err(Failure::usage)?;
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn named(nodes: Vec<v1::Node>, names: &[String], args: &Nodes) -> Result<Vec<v1::Node>, Failure> {
    let gone = names
        .iter()
        .find(|name| nodes.iter().all(|node| node.name != **name));
    if let Some(name) = gone {
        let why = format!("node {name} not found; `muster nodes` lists the nodes");
        return Err(Failure::Request(why));
    }
    let is_wanted = |node: &v1::Node| match &args.selector {
        Some(selector) => selector.takes(&node.labels),
        None => args.all || names.contains(&node.name),
    };
    let nodes: Vec<v1::Node> = nodes.into_iter().filter(is_wanted).collect();
    match nodes.is_empty() {
        true => Err(Failure::request(
            "no such node; `muster nodes` lists the nodes with their labels",
        )),
        false => Ok(nodes),
    }
}

/// Why the node is not checked, as far as it says so itself.
fn why_not(node: &v1::Node, gpus: u32, also_cordoned: bool) -> Option<String> {
    if node.state() != NodeState::Ready {
        return Some(format!("it is {}", words::node_state(node.state)));
    }
    if let Some(cordon) = node.cordon.as_ref().filter(|_| !also_cordoned) {
        return Some(format!(
            "cordoned by {} ({}); name it, or add --cordoned",
            cordon.by, cordon.reason
        ));
    }
    if node.senses_only {
        return Some("its agent only looks at the node, and starts no job".to_owned());
    }
    if let Some(busy) = why_busy(node) {
        return Some(busy);
    }
    let has = node.gpus.len();
    (has < gpus as usize).then(|| format!("it has {has} GPUs, and {gpus} are asked for"))
}

/// Whether work runs there that a check would disturb. Only a run that is over does not count.
fn why_busy(node: &v1::Node) -> Option<String> {
    if let Some(run) = node.runs.iter().find(|run| run.phase != "Dead") {
        let job = match run.job.as_str() {
            "" => "a job".to_owned(),
            name => format!("job/{name}"),
        };
        return Some(format!(
            "busy: {job} is there; --wait PERIOD waits for its end"
        ));
    }
    let holders = node.gpu_holders.as_ref().map(|all| all.holders.len());
    (holders > Some(0)).then(|| "busy: pods hold its GPUs".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_left_out_with_the_reason() {
        let well = v1::Node {
            name: "n1".into(),
            state: NodeState::Ready.into(),
            gpus: vec![v1::Gpu::default(); 8],
            ..v1::Node::default()
        };
        assert_eq!(why_not(&well, 8, false), None);
        let why = |change: fn(&mut v1::Node)| {
            let mut node = well.clone();
            change(&mut node);
            why_not(&node, 8, false).unwrap_or_default()
        };
        let run = |phase: &str| v1::NodeRun {
            job: "digits".into(),
            phase: phase.into(),
            ..v1::NodeRun::default()
        };
        let mut over = well.clone();
        over.runs = vec![run("Dead")];
        assert_eq!(why_not(&over, 8, false), None, "a run that is over");
        over.runs.push(run("Stopping"));
        assert_eq!(
            why_not(&over, 8, false).unwrap(),
            "busy: job/digits is there; --wait PERIOD waits for its end"
        );
        assert_eq!(why(|node| node.set_state(NodeState::Lost)), "it is Lost");
        assert_eq!(
            why(|node| node.gpus.truncate(4)),
            "it has 4 GPUs, and 8 are asked for"
        );
        let mut cordoned = well.clone();
        cordoned.cordon = Some(v1::Cordon {
            by: "ann".into(),
            reason: "fan".into(),
            at_unix_us: 1,
        });
        assert_eq!(
            why_not(&cordoned, 8, false).unwrap(),
            "cordoned by ann (fan); name it, or add --cordoned"
        );
        assert_eq!(why_not(&cordoned, 8, true), None);
        assert!(why(|node| node.senses_only = true).contains("only looks"));
    }
}
