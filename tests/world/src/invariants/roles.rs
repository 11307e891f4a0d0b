//! What must hold for jobs with roles.

use std::collections::BTreeSet;

use muster_core::{
    fleet::job::{GenerationRecord, JobRecord},
    run::{Desired, Target},
};

use crate::{words, world::World};

/// An agent that can hold only one member of a generation is given no more.
pub(crate) fn shares_are_understood(world: &mut World, machine: usize, desired: &Desired) {
    let shared = desired.runs.iter().find(|wanted| {
        matches!(&wanted.target, Target::Ready(assignment) | Target::Running(assignment, _) if !assignment.members.is_empty())
    });
    if let Some(wanted) = shared {
        world.fail(
            "R7",
            format!(
                "{} has several members on n{machine}, whose agent holds one",
                words::run(&wanted.run)
            ),
        );
    }
}

/// I30: whether the job, or each of its roles, has a multiple of the members that it asks for.
pub(crate) fn no_multiple(job: &JobRecord, generation: &GenerationRecord) -> Option<String> {
    let mut counts = vec![(job.spec.multiple_of, generation.size())];
    if !job.spec.roles.is_empty() {
        let shares = generation.layout.0.iter().map(|share| share.members);
        let roles = job.spec.roles.iter().map(|role| role.multiple_of);
        counts = roles.zip(shares).collect();
    }
    let mut counts = counts.into_iter();
    counts.find_map(|(multiple, members)| {
        let (of, number) = (multiple.get(), generation.number);
        let uid = &job.uid;
        (members % of != 0).then(|| {
            format!("generation {number} of {uid} has {members} members, no multiple of {of}")
        })
    })
}

/// What is wrong with the roles of a generation: each must have as many members as its job asks for.
pub(crate) fn roles_are_filled(job: &JobRecord, generation: &GenerationRecord) -> Option<String> {
    let shares = &generation.layout.0;
    let filled = shares.len() == job.spec.roles.len()
        && shares.iter().zip(&job.spec.roles).all(|(share, role)| {
            share.name == role.name
                && (role.min_replicas..=role.max_replicas).contains(&share.members)
        });
    let members = generation.size();
    let complete = shares.is_empty() || generation.layout.members() == members;
    // Pods get their GPUs from the kubelet.
    let of_pods = job.spec.template.is_some();
    let gpus = of_pods
        || (0..generation.members.len() as u32).all(|rank| {
            let share = &generation.members[rank as usize];
            let seats = generation.members.seats(rank);
            let of_seats = seats.iter().flat_map(|seat| &seat.gpus);
            let own: BTreeSet<&String> = of_seats.collect();
            own.len() == share.gpus.len()
                && seats.iter().all(|seat| {
                    let place = generation.layout.place(seat.number);
                    let role = place.and_then(|place| job.spec.roles.get(place.role));
                    let needs = role.map_or(job.spec.gpus_per_node, |role| role.gpus_per_node);
                    seat.gpus.len() as u32 == needs
                })
        });
    // Every number has one node.
    let ranks = 0..generation.members.len() as u32;
    let numbers = ranks.flat_map(|rank| {
        let seats = generation.members.seats(rank).into_owned();
        seats.into_iter().map(|seat| seat.number)
    });
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let seated = numbers.iter().copied().eq(0..members);
    let alone = job.spec.packs() || generation.members.len() as u32 == members;
    (!filled || !complete || !gpus || !seated || !alone).then(|| {
        format!(
            "generation {} of {} has {members} members in {shares:?}",
            generation.number, job.uid
        )
    })
}
