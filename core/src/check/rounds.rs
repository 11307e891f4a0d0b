//! Who is tried with whom: a round-robin tournament, and one more round where that leaves a doubt.

use std::collections::BTreeSet;

use super::{
    Trial,
    verdict::{Pair, Ways, pair},
};
use crate::id::NodeName;

/// The jobs of each round, with one or two nodes each. Within as many rounds as there are nodes, nobody meets the same
/// partner twice; further rounds are left out. Of an odd number, one node is alone in each round. Two nodes are first
/// alone, so that it is known whether one of them fails by itself.
pub fn rounds(nodes: &[NodeName], wanted: usize) -> Vec<Vec<Vec<NodeName>>> {
    match nodes {
        [] => Vec::new(),
        [one] => vec![vec![vec![one.clone()]]],
        [one, other] => {
            let alone = vec![vec![one.clone()], vec![other.clone()]];
            vec![alone, vec![nodes.to_vec()]]
        }
        _ => tournament(nodes, wanted),
    }
}

/// The circle method: the first stays where it is, the others go on by one place each round, and who faces each other
/// is a pair. An odd number has an empty place more.
fn tournament(nodes: &[NodeName], wanted: usize) -> Vec<Vec<Vec<NodeName>>> {
    let mut places: Vec<Option<&NodeName>> = nodes.iter().map(Some).collect();
    if places.len() % 2 == 1 {
        places.push(None);
    }
    let half = places.len() / 2;
    let mut all = Vec::new();
    for _ in 0..wanted.clamp(1, places.len() - 1) {
        let (front, back) = places.split_at(half);
        let facing = front.iter().zip(back.iter().rev());
        let of = |(one, other): (&Option<&NodeName>, &Option<&NodeName>)| -> Vec<NodeName> {
            { one.iter().chain(other) }
                .map(|node| (*node).clone())
                .collect()
        };
        all.push(facing.map(of).collect());
        places[1..].rotate_right(1);
    }
    all
}

/// The pairs of one more round. Empty: no doubt is left that it could end.
///
/// A node that has failed with a partner and worked with nobody may be bad itself, or only the network to that partner
/// may be. It is tried with a node that works, or else with another such node.
pub fn one_more(nodes: &[NodeName], trials: &[Trial]) -> Vec<Vec<NodeName>> {
    let ways = Ways::of(trials);
    let tried: BTreeSet<Pair> = ways.all().cloned().collect();
    let (doubtful, works): (Vec<&NodeName>, Vec<&NodeName>) = { nodes.iter() }
        .filter(|node| ways.all().any(|(a, b)| a == *node || b == *node))
        .partition(|node| ways.is_doubtful(node));
    let (mut taken, mut pairs) = (BTreeSet::new(), Vec::new());
    for node in &doubtful {
        if taken.contains(node) {
            continue;
        }
        let mut others = works.iter().chain(&doubtful);
        let partner = others.find(|other| {
            other != &node && !taken.contains(*other) && !tried.contains(&pair(node, other))
        });
        if let Some(partner) = partner {
            taken.extend([*node, *partner]);
            pairs.push(vec![(*node).clone(), (*partner).clone()]);
        }
    }
    pairs
}
