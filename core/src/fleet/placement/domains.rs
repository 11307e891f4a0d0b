//! Gangs within one domain of the topology: nodes with the same value of a label, as those of one rack.
//!
//! A *required* level is kept: the gang is placed in each of its domains alone, and the best of these gangs is taken. It
//! keeps most of the nodes that the job has; then it is the largest; then it leaves least room in its domain. *Preferred*
//! levels follow, the finest first. One is kept if a gang within it is as large, and keeps as many of the job's nodes, as
//! the best one without it. Otherwise whole domains are filled, the largest first, so that neighbours in rank order are
//! neighbours in the topology.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap};

use super::{
    Placement,
    candidate::Candidate,
    gang::Share,
    score::Worth,
    why::{Domain, Shortfall, Why},
};
use crate::{fleet::selected::Misfit, node_report::NodeReport, spec::Selection};

/// The labels in which a job's nodes must or should be alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels<'a> {
    required: Option<&'a str>,
    preferred: &'a [String],
}

impl<'a> Levels<'a> {
    pub(crate) fn of(selection: &'a Selection) -> Self {
        Self {
            required: selection.required_topology.as_deref(),
            preferred: &selection.preferred_topology,
        }
    }

    /// Whether the job asks for any.
    pub(crate) fn is_any(self) -> bool {
        self.keys().next().is_some()
    }

    fn keys(self) -> impl Iterator<Item = &'a str> {
        let required = self.required.into_iter();
        required.chain(self.preferred.iter().map(String::as_str))
    }

    /// Where a node stands: its value at the required level, if there is one, and at each preferred one.
    pub(crate) fn domains_of(self, report: &NodeReport) -> Vec<Option<Cow<'_, str>>> {
        self.keys().map(|key| report.label_or_fact(key)).collect()
    }
}

/// The candidates of one domain.
struct Found<'c, 'a> {
    /// Its value at the last of the levels.
    value: Cow<'a, str>,
    candidates: Vec<&'c Candidate<'a>>,
    /// GPUs and slots that are free there.
    room: usize,
}

type Gang<'a> = Vec<Share<'a>>;

/// Places a job by `place`, within the domains that it asks for.
pub(super) fn within<'a>(
    mut candidates: Vec<Candidate<'a>>,
    levels: Levels<'a>,
    place: impl Fn(&[&Candidate<'a>]) -> Placement<'a, Gang<'a>>,
) -> Placement<'a, Gang<'a>> {
    if levels.is_any() {
        order(&mut candidates, levels);
    }
    let candidates: Vec<&Candidate<'a>> = candidates.iter().collect();
    let first_preferred = usize::from(levels.required.is_some());
    let anywhere = match levels.required {
        Some(key) => required(&candidates, key, &place),
        None => place(&candidates),
    };
    let Placement::Gang(widest) = anywhere else {
        return anywhere;
    };
    let least = worth(&widest);
    for at in 0..levels.preferred.len() {
        let levels = match levels.required {
            Some(_) => vec![0, first_preferred + at],
            None => vec![at],
        };
        let gangs = domains(&candidates, &levels).into_iter();
        let gangs = gangs.filter_map(|domain| match place(&domain.candidates) {
            Placement::Gang(gang) => Some((Reverse(domain.room), Reverse(domain.value), gang)),
            Placement::Short(_) => None,
        });
        let good = gangs.filter(|(.., gang)| {
            let worth = worth(gang);
            worth.kept >= least.kept && worth.members >= least.members
        });
        let best =
            good.max_by(|a, b| (in_domain(&a.2), &a.0, &a.1).cmp(&(in_domain(&b.2), &b.0, &b.1)));
        if let Some((.., gang)) = best {
            return Placement::Gang(gang);
        }
    }
    Placement::Gang(widest)
}

fn worth(gang: &[Share<'_>]) -> Worth {
    let members = gang.iter().map(|share| share.members.len() as u32);
    Worth {
        complete: true,
        kept: gang.iter().filter(|share| share.kept).count(),
        members: members.sum(),
        nodes: Reverse(gang.len()),
    }
}

/// What decides between gangs of two domains before the room there: see [`Worth`]. The number of nodes does not, because a domain
/// with small nodes and little room is to be filled, too.
fn in_domain(gang: &[Share<'_>]) -> (usize, u32) {
    let Worth { kept, members, .. } = worth(gang);
    (kept, members)
}

/// The best gang of one domain. If there is none, the shortage of the domain that has most.
fn required<'a>(
    candidates: &[&Candidate<'a>],
    key: &'a str,
    place: &impl Fn(&[&Candidate<'a>]) -> Placement<'a, Gang<'a>>,
) -> Placement<'a, Gang<'a>> {
    let (mut best, mut shortest): (Option<_>, Option<(Shortfall<'a>, Cow<'a, str>)>) = (None, None);
    for domain in domains(candidates, &[0]) {
        match place(&domain.candidates) {
            Placement::Gang(gang) => {
                let worth = (in_domain(&gang), Reverse(domain.room));
                // Of equal ones the first by name.
                if best.as_ref().is_none_or(|(most, _)| worth > *most) {
                    best = Some((worth, gang));
                }
            }
            Placement::Short(short) => {
                let more = shortest
                    .as_ref()
                    .is_none_or(|(most, _)| short.have > most.have);
                if more {
                    shortest = Some((short, domain.value));
                }
            }
        }
    }
    if let Some((_, gang)) = best {
        return Placement::Gang(gang);
    }
    let (mut short, within) = match shortest {
        Some((short, value)) => (short, Some(Domain { key, value })),
        // No node has the label. The job's own size is known to `place` alone.
        None => match place(&[]) {
            Placement::Short(short) => (short, None),
            gang @ Placement::Gang(_) => return gang,
        },
    };
    for candidate in candidates {
        let value = candidate.domains[0].clone();
        let domain = value.map(|value| Domain { key, value });
        if domain.is_some() && domain == within {
            continue;
        }
        let why = match (&candidate.misfit, domain) {
            (Some(why), _) => Why::NotSelected(why.clone()),
            (None, None) => Why::NotSelected(Misfit::NoLabel(key)),
            (None, Some(domain)) => Why::Elsewhere(domain),
        };
        short.excluded.push((candidate.node, why));
    }
    short.excluded.sort_by_key(|(node, _)| *node);
    short.within = within;
    Placement::Short(short)
}

/// The candidates with the same values at these levels. Those without one of these labels are in no domain.
fn domains<'c, 'a>(candidates: &[&'c Candidate<'a>], levels: &[usize]) -> Vec<Found<'c, 'a>> {
    let mut found: BTreeMap<Vec<&str>, Vec<&'c Candidate<'a>>> = BTreeMap::new();
    for candidate in candidates {
        let values = levels
            .iter()
            .map(|level| candidate.domains[*level].as_deref());
        if let Some(values) = values.collect::<Option<Vec<&str>>>() {
            found.entry(values).or_default().push(candidate);
        }
    }
    let last = levels.last().copied().unwrap_or_default();
    let domain = |members: Vec<&'c Candidate<'a>>| Found {
        value: members[0].domains[last].clone().unwrap_or_default(),
        room: members.iter().map(|candidate| candidate.room()).sum(),
        candidates: members,
    };
    found.into_values().map(domain).collect()
}

/// Numbers the finest domains, those with most room first. Candidates of none come last.
fn order(candidates: &mut [Candidate<'_>], levels: Levels<'_>) {
    // The required level is the first, and the finest preferred one follows it.
    let depth = usize::from(levels.required.is_some()) + usize::from(!levels.preferred.is_empty());
    let finest = |candidate: &Candidate<'_>| -> Option<Vec<String>> {
        let values = candidate.domains.iter().take(depth);
        let values = values.map(|value| value.as_deref());
        values.map(|value| value.map(str::to_owned)).collect()
    };
    let mut rooms: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for candidate in candidates.iter() {
        if let Some(values) = finest(candidate) {
            *rooms.entry(values).or_default() += candidate.room();
        }
    }
    let mut places: Vec<(Reverse<usize>, Vec<String>)> = rooms
        .into_iter()
        .map(|(values, room)| (Reverse(room), values))
        .collect();
    places.sort();
    let numbers: BTreeMap<Vec<String>, u32> = (0..)
        .zip(places)
        .map(|(number, (_, values))| (values, number))
        .collect();
    for candidate in candidates {
        let number = finest(candidate).and_then(|values| numbers.get(&values).copied());
        candidate.domain = number.unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests;
