//! R7: what `fenceAfter` promises.

use super::*;

/// No two generations of a job with a fence have workers at once. One exception: the older one is
/// synchronous, and a member's proven death keeps it from making a step. This is checked when
/// workers come up, and when a machine that stood still goes on. Processes that cannot be killed or
/// that stand still can do nothing. Nothing can prevent what wakes before its runner.
pub(crate) fn one_generation_lives(world: &mut World, run: &RunId) {
    let Some(job) = world
        .store
        .jobs
        .get(&run.job)
        .filter(|job| job.spec.fence_after.is_some())
    else {
        return;
    };
    let ring_break = |generation: &GenerationRecord| {
        job.spec.progress == Progress::Synchronous && !generation.dead.is_empty()
    };
    let lives = |generation: &&GenerationRecord| {
        let id = generation.run(&job.uid);
        let machines = generation
            .members
            .iter()
            .filter_map(|member| world.machine_named(&member.node));
        machines
            .filter(|machine| !world.wakes(*machine))
            .filter_map(|machine| world.machines[machine].runs.get(&id))
            // No fence reaches a process that outlives its runner. It keeps what it was given (R9,
            // I12).
            .any(|group| group.has_ranks() && !group.is_beyond_reach(world.now))
    };
    let living: Vec<&GenerationRecord> = job.unproven_generations().filter(lives).collect();
    let newest = living.iter().map(|generation| generation.number).max();
    let older = living
        .iter()
        .find(|generation| Some(generation.number) < newest && !ring_break(generation));
    if let Some(older) = older {
        let what = format!(
            "workers of {} live beside those of generation {}",
            words::run(&older.run(&job.uid)),
            newest.map_or(0, |number| number.0)
        );
        world.fail("R7", what);
    }
}
