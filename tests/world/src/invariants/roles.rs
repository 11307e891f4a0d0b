//! What must hold for jobs with roles.

use muster_core::{
    fleet::job::{GenerationRecord, JobRecord},
    run::{Desired, Target},
    spec::Framework,
};

use crate::{words, world::World};

/// An agent that does not know MPI is given no job of it.
pub(crate) fn mpi_is_understood(world: &mut World, machine: usize, desired: &Desired) {
    let of_mpi = desired.runs.iter().find(|wanted| {
        matches!(&wanted.target, Target::Ready(assignment) | Target::Running(assignment, _) if assignment.framework == Framework::Mpi)
    });
    if let Some(wanted) = of_mpi {
        world.fail(
            "R7",
            format!(
                "{} is given to n{machine}, whose agent does not know of MPI",
                words::run(&wanted.run)
            ),
        );
    }
}

/// What is wrong with the roles of a generation: each must have as many members as its job asks for.
pub(crate) fn roles_are_filled(job: &JobRecord, generation: &GenerationRecord) -> Option<String> {
    let shares = &generation.layout.0;
    let filled = shares.len() == job.spec.roles.len()
        && shares.iter().zip(&job.spec.roles).all(|(share, role)| {
            share.name == role.name
                && (role.min_replicas..=role.max_replicas).contains(&share.members)
        });
    let members = generation.members.len() as u32;
    let complete = shares.is_empty() || generation.layout.members() == members;
    // Pods get their GPUs from the kubelet.
    let of_pods = job.spec.template.is_some();
    let gpus = of_pods
        || generation.members.iter().enumerate().all(|(rank, member)| {
            let place = generation.layout.place(rank as u32);
            let role = place.and_then(|place| job.spec.roles.get(place.role));
            role.is_none_or(|role| member.gpus.len() as u32 == role.gpus_per_node)
        });
    (!filled || !complete || !gpus).then(|| {
        format!(
            "generation {} of {} has {members} members in {shares:?}",
            generation.number, job.uid
        )
    })
}
