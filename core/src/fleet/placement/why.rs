//! Why a node does not take a job, and why a job has too few nodes. Each is a value. It borrows what it speaks of, so a turn
//! makes no text of it, and becomes a sentence where somebody reads it.

use std::{borrow::Cow, collections::BTreeSet, fmt, rc::Rc};

use super::limit::Limit;
use crate::{
    fleet::{
        selected::Misfit,
        shortage::{self, Shortage},
        unhealthy::NoNewWork,
    },
    id::{JobName, NodeName},
    nccl::{mixture::Kind, stack::Odd},
    node_report::holders::Holder,
};

/// Why a node does not take a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why<'a> {
    /// The job does not select it.
    NotSelected(Misfit<'a>),
    Unheard,
    Suspect,
    Lost,
    Cordoned,
    Halted,
    Avoided(Avoided<'a>),
    Occupied,
    Gpus {
        free: u32,
        need: u32,
        /// How many it would have if nobody held any.
        has: u32,
        held: Held<'a>,
    },
    /// There would be enough, and a job that comes before this one waits for it.
    Kept {
        kept: Kept<'a>,
        /// How many GPUs it would have if nobody held any.
        has: u32,
        /// 0: a slot.
        need: u32,
    },
    /// Its hardware does not go with that of the nodes that would be taken.
    OtherKind {
        own: Rc<Kind>,
        others: Rc<Kind>,
    },
    /// Its interpreter does not go with theirs.
    OtherStack(Odd),
    /// It is in another domain than those that are most.
    Elsewhere(Domain<'a>),
    /// Its agent cannot hold several members of a job.
    OneMember,
}

/// Why a job should not have a node for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Avoided<'a> {
    /// The job could not start there. The words are the node's, or the coordinator's.
    CouldNotStart(&'a str),
    NoNewWork(NoNewWork<'a>),
    /// It is a pod that will not stay.
    Going(&'static str),
    SensesOnly,
}

/// What jobs that wait keep of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept<'a> {
    pub gpus: u32,
    pub slots: u32,
    /// The first of them.
    pub by: &'a JobName,
    /// That of the job that asks. Its owner need not know the names of jobs in others.
    pub namespace: &'a str,
}

/// A domain of the topology: nodes with this value of this label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain<'a> {
    pub key: &'a str,
    pub value: Cow<'a, str>,
}

/// Who besides Muster's own jobs holds GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Held<'a> {
    /// Nobody, or nobody asked.
    #[default]
    Nobody,
    By {
        /// How many GPUs are held.
        gpus: u32,
        by: Vec<&'a Holder>,
        /// The job's namespace. Its owner need not know the names of pods in others.
        namespace: &'a str,
    },
    /// The node's kubelet does not say it.
    Unknown,
}

/// There are fewer nodes than the minimum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortfall<'a> {
    pub need: u32,
    pub have: u32,
    /// The unit of these two: nodes or members.
    pub unit: &'static str,
    /// The domain in which there are most, if all must be in one.
    pub within: Option<Domain<'a>>,
    /// What is wrong with the others, in the order of their names.
    pub excluded: Vec<(&'a NodeName, Why<'a>)>,
    /// Its namespace or queue has used up its GPUs, so that no node was asked.
    pub over: Option<Box<Limit<'a>>>,
}

impl fmt::Display for Kept<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by.namespace == self.namespace {
            true => write!(f, "kept for {}, which waits", self.by),
            false => f.write_str("kept for a job of another namespace, which waits"),
        }
    }
}

impl fmt::Display for Domain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl fmt::Display for Avoided<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Avoided::CouldNotStart(why) => f.write_str(why),
            Avoided::NoNewWork(why) => why.fmt(f),
            Avoided::Going(why) => f.write_str(why),
            Avoided::SensesOnly => f.write_str("takes no work: its agent only looks at it"),
        }
    }
}

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One node has at most a few pods with GPUs, unless these are shared.
        const NAMED: usize = 4;
        let (gpus, by, namespace) = match self {
            Held::Unknown => {
                return f.write_str("; its kubelet does not say which pods hold GPUs");
            }
            Held::Nobody | Held::By { gpus: 0, .. } => return Ok(()),
            Held::By {
                gpus,
                by,
                namespace,
            } => (gpus, by, *namespace),
        };
        write!(f, "; {gpus} held by pods: ")?;
        let pods: BTreeSet<(&str, &str)> = by
            .iter()
            .map(|holder| (holder.namespace.as_str(), holder.pod.as_str()))
            .collect();
        let (own, elsewhere): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|pod| pod.0 == namespace);
        let mut said: Vec<String> = own
            .iter()
            .take(NAMED)
            .map(|(namespace, pod)| format!("{namespace}/{pod}"))
            .collect();
        if own.len() > NAMED {
            said.push(format!("{} more", own.len() - NAMED));
        }
        if !elsewhere.is_empty() {
            said.push(format!("{} of other namespaces", elsewhere.len()));
        }
        f.write_str(&said.join(", "))
    }
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotSelected(why) => why.fmt(f),
            Why::Unheard => f.write_str("not heard yet"),
            Why::Suspect => f.write_str("suspect"),
            Why::Lost => f.write_str("lost"),
            Why::Cordoned => f.write_str("cordoned"),
            Why::Halted => f.write_str("knows more than the store"),
            Why::Avoided(why) => why.fmt(f),
            Why::Occupied => f.write_str("occupied"),
            Why::Gpus {
                free, need, held, ..
            } => write!(f, "{free} of {need} GPUs free{held}"),
            Why::Kept { kept, .. } => kept.fmt(f),
            Why::OtherKind { own, others } => {
                write!(f, "does not go with the others ({})", own.beside(others))
            }
            Why::OtherStack(odd) => write!(f, "does not go with the others ({odd})"),
            Why::Elsewhere(domain) => write!(f, "is in {domain}"),
            Why::OneMember => {
                f.write_str("has an agent that holds one member of a job only: upgrade it")
            }
        }
    }
}

impl Why<'_> {
    /// What to say behind the node's name.
    pub(crate) fn sentence(&self, node: &NodeName) -> String {
        // The message of a failure already names the node.
        let why = self.to_string();
        let of_node = why.strip_prefix(&format!("{node} "));
        of_node.map(str::to_owned).unwrap_or(why)
    }

    /// Its cause, as a word.
    pub(crate) fn shortage(&self) -> Shortage {
        match self {
            Why::NotSelected(Misfit::Tainted(_)) => Shortage::NodesTainted,
            Why::NotSelected(_) => Shortage::SelectorMatchesTooFew,
            Why::Unheard | Why::Suspect | Why::Lost => Shortage::NodesSilent,
            Why::Cordoned => Shortage::NodesCordoned,
            Why::Halted => Shortage::StoreBehind,
            Why::Avoided(_) => Shortage::NodesExcluded,
            Why::Occupied => Shortage::NodesOccupied,
            Why::Gpus { .. } => Shortage::TooFewGpus,
            Why::Kept { .. } => Shortage::NodesReserved,
            Why::OtherKind { .. } | Why::OtherStack(_) => Shortage::MixedNodes,
            Why::Elsewhere(_) => Shortage::TopologyTooSmall,
            Why::OneMember => Shortage::AgentTooOld,
        }
    }

    /// How many members the node will hold when other jobs and pods have ended. Where each has a node of its own, one.
    pub(crate) fn passing(&self) -> u32 {
        match self {
            Why::Occupied => 1,
            Why::Kept { need: 0, .. } => 1,
            Why::Gpus { need, has, .. } | Why::Kept { need, has, .. } => has / (*need).max(1),
            _ => 0,
        }
    }

    fn is_unselected(&self) -> bool {
        self.shortage() == Shortage::SelectorMatchesTooFew
    }
}

impl fmt::Display for Shortfall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (have, need) = (self.have, self.need);
        if let Some(limit) = &self.over {
            return write!(f, "{limit}, and this one needs at least {need}");
        }
        write!(f, "{have} of at least {need} {} available", self.unit)?;
        if let Some(within) = &self.within {
            write!(f, " in {within}")?;
        }
        // A few names help a reader. A thousand do not.
        const NAMED: usize = 8;
        for (i, (node, why)) in self.by_worth().take(NAMED).enumerate() {
            let why = why.sentence(node);
            write!(f, "{}{node} {why}", if i == 0 { ": " } else { ", " })?;
        }
        if self.excluded.len() > NAMED {
            write!(f, ", and {} more", self.excluded.len() - NAMED)?;
        }
        Ok(())
    }
}

impl<'a> Shortfall<'a> {
    /// The most frequent cause among the nodes that do not take the job, as a word. Nodes that it does not select count
    /// only if it selects too few.
    pub(crate) fn shortage(&self) -> Shortage {
        if let Some(limit) = &self.over {
            return limit.shortage();
        }
        let words = || self.excluded.iter().map(|(_, why)| why.shortage());
        let unselected = |word: &Shortage| *word == Shortage::SelectorMatchesTooFew;
        let selected = words().filter(|word| !unselected(word)).count() as u32 + self.have;
        if self.unit == "nodes" && selected < self.need && words().any(|word| unselected(&word)) {
            return Shortage::SelectorMatchesTooFew;
        }
        let selected = words().filter(|word| !unselected(word));
        let most = shortage::most(selected.map(|word| (word, 1)));
        most.or_else(|| words().next()).unwrap_or(Shortage::NoNodes)
    }

    /// The nodes that do not take the job, first those that it selects.
    pub(crate) fn by_worth(&self) -> impl Iterator<Item = &(&'a NodeName, Why<'a>)> {
        let wanted = self.excluded.iter().filter(|(_, why)| !why.is_unselected());
        let others = self.excluded.iter().filter(|(_, why)| why.is_unselected());
        wanted.chain(others)
    }
}
