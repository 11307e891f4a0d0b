//! Which nodes form the next generation, and in which rank order. It is a gang: all or nothing.
//!
//! First come hard exclusions, each with its reason. If the job refuses a mixture, placement then
//! keeps only one kind of node, and only interpreters that go together. It prefers a kind with
//! enough nodes, then the kind with most survivors, then the kind with most nodes. The rest
//! is a score whose derived `Ord` is the policy. Survivors keep their relative rank order and
//! newcomers follow, so a rank's data and its neighbours stay where they were.

use std::{cmp::Reverse, collections::BTreeMap, fmt};

use crate::{
    fleet::{
        members::Member,
        registry::Liveness,
        shortage::{self, Shortage},
    },
    id::NodeName,
    nccl::{
        mixture::Kind,
        stack::{self, Bearer, Stack},
    },
};

mod pack;
mod roles;

pub(crate) use pack::pack;
pub(crate) use roles::{RoleNeed, place_roles};

/// A node as placement sees it: for one job, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    pub node: NodeName,
    pub boot_id: &'a str,
    pub liveness: Liveness,
    pub connected: bool,
    pub cordoned: bool,
    /// The node knows more than the store, so nothing is decided about it.
    pub halted: bool,
    /// Why this job should not have the node for now, for example because it could not start there.
    pub avoided: Option<String>,
    /// This job has failed there repeatedly. The node is taken only if there are not enough others.
    pub shunned: bool,
    pub slots_free: u32,
    pub gpus_free: Vec<FreeGpu<'a>>,
    /// Who holds GPUs of the node, if too few are free.
    pub gpus_held: Held,
    /// Its node rank in the job's latest generation.
    pub node_rank: Option<u32>,
    /// The position of its role in that generation, if its members had roles.
    pub role: Option<usize>,
    /// The kind of node. It is the same for all if the job takes any mixture, and for all nodes
    /// with too few GPUs.
    pub kind: Kind,
    /// What its interpreter has, as far as that is known. It is empty if the job takes any mixture.
    pub stack: Stack,
    /// Whether it was a member of the last generation that trained.
    pub trained: bool,
    /// The members that it had in the job's latest generation, if members may share nodes.
    pub had: Vec<Had>,
    /// Its agent cannot hold several members.
    pub one_member: bool,
}

/// A member that a node had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Had {
    pub number: u32,
    /// The position of its role.
    pub role: usize,
}

/// All that placement needs to know of a GPU. It is small, because ten thousand nodes have eighty
/// thousand GPUs.
#[derive(Clone, Debug)]
pub(crate) struct FreeGpu<'a> {
    pub index: u32,
    pub uuid: &'a str,
}

/// Who besides Muster's own jobs holds GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Held {
    By {
        /// How many GPUs are held.
        gpus: u32,
        /// The holders in the job's namespace, as `NAMESPACE/POD`.
        pods: Vec<String>,
        /// How many pods of other namespaces hold GPUs. The owner of a job need not know their names.
        elsewhere: u32,
    },
    /// The node's kubelet does not say it.
    Unknown,
}

impl Default for Held {
    fn default() -> Self {
        Held::By {
            gpus: 0,
            pods: Vec::new(),
            elsewhere: 0,
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One node has at most a few pods with GPUs, unless these are shared.
        const NAMED: usize = 4;
        let (gpus, pods, elsewhere) = match self {
            Held::Unknown => {
                return f.write_str("; its kubelet does not say which pods hold GPUs");
            }
            Held::By { gpus: 0, .. } => return Ok(()),
            Held::By {
                gpus,
                pods,
                elsewhere,
            } => (gpus, pods, elsewhere),
        };
        write!(f, "; {gpus} held by pods: ")?;
        let mut said: Vec<String> = pods.iter().take(NAMED).cloned().collect();
        if pods.len() > NAMED {
            said.push(format!("{} more", pods.len() - NAMED));
        }
        if *elsewhere > 0 {
            said.push(format!("{elsewhere} of other namespaces"));
        }
        f.write_str(&said.join(", "))
    }
}

/// What one generation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub min: u32,
    /// How many nodes to take if there are as many.
    pub wanted: u32,
    pub gpus_per_node: u32,
}

/// The answer: a gang, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Gang(Vec<Member>),
    Short(Shortfall),
}

/// There are fewer nodes than the minimum. `excluded` says what is wrong with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortfall {
    pub need: u32,
    pub have: u32,
    /// The unit of these two: nodes or members.
    pub counts: &'static str,
    pub excluded: BTreeMap<NodeName, Exclusion>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exclusion {
    Unheard,
    Suspect,
    Lost,
    Cordoned,
    Halted,
    Avoided(String),
    Occupied,
    Gpus {
        free: u32,
        need: u32,
        held: Held,
    },
    /// How the node differs from those that would be taken.
    Mixed(String),
    /// Its agent cannot hold several members of a job.
    OneMember,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exclusion::Unheard => f.write_str("not heard yet"),
            Exclusion::Suspect => f.write_str("suspect"),
            Exclusion::Lost => f.write_str("lost"),
            Exclusion::Cordoned => f.write_str("cordoned"),
            Exclusion::Halted => f.write_str("knows more than the store"),
            Exclusion::Avoided(why) => f.write_str(why),
            Exclusion::Occupied => f.write_str("occupied"),
            Exclusion::Gpus { free, need, held } => write!(f, "{free} of {need} GPUs free{held}"),
            Exclusion::Mixed(how) => write!(f, "does not go with the others ({how})"),
            Exclusion::OneMember => {
                f.write_str("has an agent that holds one member of a job only: upgrade it")
            }
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (have, need) = (self.have, self.need);
        write!(f, "{have} of at least {need} {} available", self.counts)?;
        // A few names help a reader. A thousand do not.
        const NAMED: usize = 8;
        for (i, (node, why)) in self.excluded.iter().take(NAMED).enumerate() {
            // The message of a failure already names the node.
            let why = why.to_string();
            let why = why.strip_prefix(&format!("{node} ")).unwrap_or(&why);
            write!(f, "{}{node} {why}", if i == 0 { ": " } else { ", " })?;
        }
        if self.excluded.len() > NAMED {
            write!(f, ", and {} more", self.excluded.len() - NAMED)?;
        }
        Ok(())
    }
}

impl Shortfall {
    /// What holds for most of the nodes that do not take the job, as a word.
    pub(crate) fn shortage(&self) -> Shortage {
        let words = self.excluded.values().map(|why| match why {
            Exclusion::Unheard | Exclusion::Suspect | Exclusion::Lost => Shortage::NodesSilent,
            Exclusion::Cordoned => Shortage::NodesCordoned,
            Exclusion::Halted => Shortage::StoreBehind,
            Exclusion::Avoided(_) => Shortage::NodesExcluded,
            Exclusion::Occupied => Shortage::NodesOccupied,
            Exclusion::Gpus { .. } => Shortage::TooFewGpus,
            Exclusion::Mixed(_) => Shortage::MixedNodes,
            Exclusion::OneMember => Shortage::AgentTooOld,
        });
        shortage::most(words.map(|word| (word, 1))).unwrap_or(Shortage::NoNodes)
    }
}

/// Lower is better, field by field from the top.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Survivors come before newcomers.
    newcomer: bool,
    node_rank: u32,
    /// The node that is left with the fewest free GPUs comes first. That keeps whole nodes free.
    gpus_left: u32,
    slots_left: u32,
    /// The name decides ties, so the order in which nodes were heard never matters.
    node: NodeName,
}

fn exclusion(candidate: &Candidate<'_>, need: &Need) -> Option<Exclusion> {
    let free = candidate.gpus_free.len() as u32;
    match candidate.liveness {
        Liveness::Unknown => return Some(Exclusion::Unheard),
        Liveness::Suspect => return Some(Exclusion::Suspect),
        Liveness::Lost => return Some(Exclusion::Lost),
        Liveness::Ready if !candidate.connected => return Some(Exclusion::Suspect),
        Liveness::Ready => {}
    }
    if candidate.halted {
        Some(Exclusion::Halted)
    } else if candidate.cordoned {
        Some(Exclusion::Cordoned)
    } else if let Some(why) = &candidate.avoided {
        Some(Exclusion::Avoided(why.clone()))
    } else if need.gpus_per_node > 0 && free < need.gpus_per_node {
        Some(Exclusion::Gpus {
            free,
            need: need.gpus_per_node,
            held: candidate.gpus_held.clone(),
        })
    } else if need.gpus_per_node == 0 && candidate.slots_free == 0 {
        Some(Exclusion::Occupied)
    } else {
        None
    }
}

/// Chooses a gang.
pub(crate) fn place(candidates: &[Candidate<'_>], need: Need) -> Placement {
    let mut excluded = BTreeMap::new();
    let mut fit: Vec<(Score, &Candidate<'_>)> = Vec::new();
    for candidate in candidates {
        match exclusion(candidate, &need) {
            Some(why) => {
                excluded.insert(candidate.node.clone(), why);
            }
            None => fit.push((score(candidate, &need), candidate)),
        }
    }
    only_one_kind(&mut fit, &need, &mut excluded);
    only_one_stack(&mut fit, &need, &mut excluded);
    if (fit.len() as u32) < need.min {
        return Placement::Short(Shortfall {
            need: need.min,
            have: fit.len() as u32,
            counts: "nodes",
            excluded,
        });
    }
    // Often a few nodes are chosen from very many. The rest needs no order.
    let wanted = need.wanted as usize;
    if fit.len() > wanted && wanted > 0 {
        fit.select_nth_unstable_by(wanted - 1, |a, b| {
            (a.1.shunned, &a.0).cmp(&(b.1.shunned, &b.0))
        });
    }
    fit.truncate(wanted);
    fit.sort_by(|a, b| a.0.cmp(&b.0));
    Placement::Gang(
        fit.into_iter()
            .map(|(_, candidate)| member(candidate, &need))
            .collect(),
    )
}

/// Keeps the nodes of one kind. A kind with too few nodes loses. Then the kind with most survivors
/// wins, so that they stay together as they do without kinds. Then the larger kind wins.
fn only_one_kind(
    fit: &mut Vec<(Score, &Candidate<'_>)>,
    need: &Need,
    excluded: &mut BTreeMap<NodeName, Exclusion>,
) {
    let mut kinds: BTreeMap<&Kind, (u32, u32)> = BTreeMap::new();
    for (score, candidate) in fit.iter() {
        let (survivors, all) = kinds.entry(&candidate.kind).or_default();
        *survivors += u32::from(!score.newcomer);
        *all += 1;
    }
    // Of equal kinds the last one wins. It has the newer CUDA.
    let best = kinds.into_iter().max_by_key(|(_, (survivors, all))| {
        (*all >= need.min, *survivors, (*all).min(need.wanted))
    });
    let Some((best, _)) = best else { return };
    fit.retain(|(_, candidate)| {
        if candidate.kind != *best {
            excluded.insert(
                candidate.node.clone(),
                Exclusion::Mixed(candidate.kind.beside(best)),
            );
        }
        candidate.kind == *best
    });
}

/// Keeps the nodes whose interpreters go together, as far as they are known. A node with an unknown
/// interpreter is kept, and asked when it is ready.
fn only_one_stack(
    fit: &mut Vec<(Score, &Candidate<'_>)>,
    need: &Need,
    excluded: &mut BTreeMap<NodeName, Exclusion>,
) {
    if fit
        .iter()
        .all(|(_, candidate)| candidate.stack == Stack::default())
    {
        return;
    }
    let bearers: Vec<Bearer<'_>> = fit
        .iter()
        .map(|(_, c)| Bearer {
            node: &c.node,
            stack: &c.stack,
            survivor: c.trained,
        })
        .collect();
    let odd = stack::mismatched(&bearers, need.gpus_per_node > 0, need.min);
    fit.retain(|(_, candidate)| !odd.contains_key(&candidate.node));
    excluded.extend(
        odd.into_iter()
            .map(|(node, how)| (node, Exclusion::Mixed(how))),
    );
}

fn score(candidate: &Candidate<'_>, need: &Need) -> Score {
    Score {
        newcomer: candidate.node_rank.is_none(),
        node_rank: candidate.node_rank.unwrap_or(0),
        gpus_left: (candidate.gpus_free.len() as u32).saturating_sub(need.gpus_per_node),
        slots_left: candidate.slots_free,
        node: candidate.node.clone(),
    }
}

fn member(candidate: &Candidate<'_>, need: &Need) -> Member {
    let mut gpus: Vec<&FreeGpu<'_>> = candidate.gpus_free.iter().collect();
    gpus.sort_by_key(|gpu| Reverse(gpu.index));
    let gpus = (0..need.gpus_per_node)
        .filter_map(|_| gpus.pop())
        .map(|gpu| gpu.uuid.to_owned())
        .collect();
    Member {
        node: candidate.node.clone(),
        boot_id: candidate.boot_id.to_owned(),
        gpus,
        // They are added when the generation is opened.
        addresses: Vec::new(),
        seats: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
