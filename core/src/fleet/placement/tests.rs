use proptest::prelude::*;

use super::*;

fn node(name: &str, node_rank: Option<u32>) -> Candidate<'static> {
    Candidate {
        node: name.into(),
        boot_id: "boot",
        liveness: Liveness::Ready,
        connected: true,
        cordoned: false,
        halted: false,
        avoided: None,
        shunned: false,
        slots_free: 1,
        gpus_held: Held::default(),
        gpus_free: Vec::new(),
        node_rank,
        role: None,
        kind: Kind::default(),
        stack: Stack::default(),
        trained: false,
        had: Vec::new(),
        one_member: false,
    }
}

fn names(placement: Placement) -> Vec<String> {
    match placement {
        Placement::Gang(members) => members
            .into_iter()
            .map(|member| member.node.to_string())
            .collect(),
        Placement::Short(shortfall) => panic!("{shortfall}"),
    }
}

const NEED: Need = Need {
    min: 2,
    wanted: 3,
    gpus_per_node: 0,
};

#[test]
fn survivors_keep_their_order_and_newcomers_follow() {
    let nodes = [
        node("a", None),
        node("b", Some(2)),
        node("c", Some(0)),
        node("d", None),
    ];
    assert_eq!(names(place(&nodes, NEED)), ["c", "b", "a"]);
}

#[test]
fn a_shortfall_says_how_many_and_why() {
    let mut nodes = [node("a", None), node("b", None), node("c", None)];
    nodes[1].cordoned = true;
    nodes[2].liveness = Liveness::Lost;
    let Placement::Short(shortfall) = place(&nodes, NEED) else {
        panic!("must be short")
    };
    assert_eq!(
        shortfall.to_string(),
        "1 of at least 2 nodes available: b cordoned, c lost"
    );
    nodes[1].cordoned = false;
    nodes[1].avoided = Some("b did not get ready in time".into());
    let Placement::Short(shortfall) = place(&nodes, NEED) else {
        panic!("must be short")
    };
    assert_eq!(
        shortfall.to_string(),
        "1 of at least 2 nodes available: b did not get ready in time, c lost"
    );
}

#[test]
fn a_shunned_node_is_taken_only_where_others_lack_and_keeps_its_rank() {
    let mut nodes = [
        node("a", Some(0)),
        node("b", Some(1)),
        node("c", Some(2)),
        node("d", None),
    ];
    nodes[0].shunned = true;
    assert_eq!(names(place(&nodes, NEED)), ["b", "c", "d"]);
    assert_eq!(names(place(&nodes[..3], NEED)), ["a", "b", "c"]);
}

#[test]
fn gpus_are_given_whole_and_in_order() {
    let gpu = |index: u32, uuid| FreeGpu { index, uuid };
    let mut nodes = [node("a", None), node("b", None)];
    nodes[0].gpus_free = vec![gpu(7, "GPU-7"), gpu(1, "GPU-1"), gpu(3, "GPU-3")];
    nodes[1].gpus_free = vec![gpu(0, "GPU-0")];
    let need = Need {
        min: 1,
        wanted: 2,
        gpus_per_node: 2,
    };
    let Placement::Gang(members) = place(&nodes, need) else {
        panic!("must fit")
    };
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].gpus, ["GPU-1", "GPU-3"]);
}

/// Nodes of these kinds, named a, b and so on.
fn kinds(models: &[&str]) -> Vec<Candidate<'static>> {
    let named = models
        .iter()
        .zip('a'..)
        .map(|(model, name)| (model, node(&name.to_string(), None)));
    named
        .map(|(model, node)| Candidate {
            kind: Kind::of_model(model),
            ..node
        })
        .collect()
}

#[test]
fn of_nodes_that_do_not_go_together_the_larger_kind_is_taken() {
    assert_eq!(
        names(place(
            &kinds(&["A100", "H100", "H100", "A100", "H100"]),
            NEED
        )),
        ["b", "c", "e"]
    );
    let Placement::Short(shortfall) = place(&kinds(&["A100", "H100"]), NEED) else {
        panic!("must be short")
    };
    assert_eq!(
        shortfall.to_string(),
        "1 of at least 2 nodes available: a does not go with the others (A100, not H100)"
    );
}

#[test]
fn survivors_of_a_kind_stay_as_long_as_they_are_enough() {
    let mut nodes = kinds(&["A100", "A100", "H100", "H100", "H100"]);
    (nodes[0].node_rank, nodes[1].node_rank) = (Some(0), Some(1));
    assert_eq!(names(place(&nodes, NEED)), ["a", "b"]);
    nodes[1].liveness = Liveness::Lost;
    assert_eq!(
        names(place(&nodes, NEED)),
        ["c", "d", "e"],
        "one alone is not enough"
    );
}

#[test]
fn the_node_that_is_left_with_the_fewest_gpus_is_taken() {
    let gpu = |index: u32, uuid| FreeGpu { index, uuid };
    let mut nodes = [node("a", None), node("b", None), node("c", None)];
    nodes[0].gpus_free = vec![gpu(0, "A-0"), gpu(1, "A-1"), gpu(2, "A-2"), gpu(3, "A-3")];
    nodes[1].gpus_free = vec![gpu(0, "B-0"), gpu(1, "B-1")];
    nodes[2].gpus_free = vec![gpu(0, "C-0"), gpu(1, "C-1"), gpu(2, "C-2")];
    let need = Need {
        min: 1,
        wanted: 1,
        gpus_per_node: 2,
    };
    assert_eq!(names(place(&nodes, need)), ["b"], "whole nodes stay whole");
    assert_eq!(names(place(&nodes, Need { wanted: 2, ..need })), ["b", "c"]);
    nodes[0].node_rank = Some(0);
    assert_eq!(
        names(place(&nodes, need)),
        ["a"],
        "a survivor stays where its data is"
    );
}

#[test]
fn of_nodes_without_gpus_the_fullest_is_taken() {
    let mut nodes = [node("a", None), node("b", None), node("c", None)];
    (
        nodes[0].slots_free,
        nodes[1].slots_free,
        nodes[2].slots_free,
    ) = (3, 1, 2);
    assert_eq!(names(place(&nodes, NEED)), ["b", "c", "a"]);
    assert_eq!(names(place(&nodes, Need { wanted: 2, ..NEED })), ["b", "c"]);
}

/// The facts of one node. Each may be a reason not to take it, or not.
#[derive(Clone, Debug)]
struct Facts {
    liveness: Liveness,
    /// The reason against the node, as a number: not connected, cordoned, halted or avoided. Most
    /// nodes have none.
    trouble: Option<u8>,
    shunned: bool,
    slots_free: u32,
    /// Indices of its free GPUs.
    gpus_free: Vec<u32>,
    node_rank: Option<u32>,
}

fn facts() -> impl Strategy<Value = Facts> {
    let liveness = prop_oneof![
        4 => Just(Liveness::Ready), 1 => Just(Liveness::Suspect), 1 => Just(Liveness::Lost), 1 => Just(Liveness::Unknown)
    ];
    let trouble = prop_oneof![3 => Just(None), 1 => (0u8..4).prop_map(Some)];
    let gpus = prop::sample::subsequence(vec![0u32, 1, 2, 3, 4, 5, 6, 7], 0..=8).prop_shuffle();
    (
        liveness,
        trouble,
        prop::bool::weighted(0.2),
        0u32..3,
        gpus,
        prop::option::of(0u32..50),
    )
        .prop_map(
            |(liveness, trouble, shunned, slots_free, gpus_free, node_rank)| Facts {
                liveness,
                trouble,
                shunned,
                slots_free,
                gpus_free,
                node_rank,
            },
        )
}

const GPUS: [&str; 8] = [
    "GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7",
];

fn candidate(number: usize, facts: &Facts) -> Candidate<'static> {
    Candidate {
        liveness: facts.liveness,
        connected: facts.trouble != Some(0),
        cordoned: facts.trouble == Some(1),
        halted: facts.trouble == Some(2),
        avoided: (facts.trouble == Some(3)).then(|| "it could not start there".to_owned()),
        shunned: facts.shunned,
        slots_free: facts.slots_free,
        gpus_free: facts
            .gpus_free
            .iter()
            .map(|index| FreeGpu {
                index: *index,
                uuid: GPUS[*index as usize],
            })
            .collect(),
        ..node(
            &format!("n{number:02}"),
            facts.node_rank.map(|rank| rank * 100 + number as u32),
        )
    }
}

proptest! {
    /// The oracle re-derives which nodes can be taken, and sorts all of them. A gang must be
    /// exactly the head of that list, and a refusal must be unavoidable.
    #[test]
    fn gangs_are_the_best_there_is_and_refusals_true(
        facts in prop::collection::vec(facts(), 0..12), min in 1u32..6, extra in 0u32..4, gpus_per_node in 0u32..5,
    ) {
        let nodes: Vec<Candidate<'_>> = facts.iter().enumerate().map(|(number, facts)| candidate(number, facts)).collect();
        let need = Need { min, wanted: min + extra, gpus_per_node };
        let is_usable = |facts: &Facts| {
            let room = if gpus_per_node > 0 { facts.gpus_free.len() as u32 >= gpus_per_node } else { facts.slots_free > 0 };
            facts.liveness == Liveness::Ready && facts.trouble.is_none() && room
        };
        let usable: Vec<&Candidate<'_>> =
            nodes.iter().zip(&facts).filter(|(_, facts)| is_usable(facts)).map(|(node, _)| node).collect();
        match place(&nodes, need) {
            Placement::Short(shortfall) => {
                prop_assert!((usable.len() as u32) < min);
                prop_assert_eq!((shortfall.need, shortfall.have), (min, usable.len() as u32));
                let left_out: Vec<&NodeName> = shortfall.excluded.keys().collect();
                let expected: Vec<&NodeName> =
                    nodes.iter().map(|node| &node.node).filter(|name| usable.iter().all(|node| node.node != **name)).collect();
                prop_assert_eq!(left_out, expected, "each node that was left out has a reason");
            }
            Placement::Gang(members) => {
                prop_assert!(usable.len() as u32 >= min);
                // Order within a gang: survivors in their old order, then the fullest nodes. The
                // choice for a gang uses the same order, but shunned nodes come last.
                let place = |node: &Candidate<'_>| {
                    (node.node_rank.is_none(), node.node_rank, node.gpus_free.len(), node.slots_free, node.node.clone())
                };
                let mut expected = usable;
                expected.sort_by_key(|node| (node.shunned, place(node)));
                expected.truncate(need.wanted as usize);
                expected.sort_by_key(|node| place(node));
                let names: Vec<&NodeName> = members.iter().map(|member| &member.node).collect();
                prop_assert_eq!(names, expected.iter().map(|node| &node.node).collect::<Vec<_>>());
                for (member, node) in members.iter().zip(expected) {
                    let mut lowest: Vec<u32> = node.gpus_free.iter().map(|gpu| gpu.index).collect();
                    lowest.sort_unstable();
                    let lowest = lowest.into_iter().take(gpus_per_node as usize).map(|index| GPUS[index as usize]);
                    prop_assert_eq!(&member.gpus, &lowest.collect::<Vec<_>>(), "the lowest free GPUs of the node, each once");
                }
            }
        }
    }
}
