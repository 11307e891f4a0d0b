//! A rank that leaves its process group before its own error ends it, as a script does that cleans up in a
//! `finally`. Those that have lost it end first.

use muster_core::{exit::Exit, run::RunId};

use crate::{event::Event, runner::PEER_LOST, trace::note, troubles::Kind, words, world::World};

impl World {
    /// A rank leaves its process group because of an error, and cleans up before that error ends it. The
    /// others of its world have lost it at once. False: nobody depends on it.
    pub(crate) fn rank_leaves(
        &mut self,
        machine: usize,
        run: RunId,
        life: u64,
        local: usize,
    ) -> bool {
        let group = &self.machines[machine].runs[&run];
        let (report, ranks) = (&group.ranks[local].report, group.ranks.len());
        let rank = (report.rank, report.attempt);
        let formed = |world: u64| self.trainings[&world].formed;
        let world = group.world.filter(|world| formed(*world));
        let Some(world) =
            world.filter(|_| !group.restarts_alone(rank.0) && group.ranks[local].alive)
        else {
            return false;
        };
        note!(
            self,
            "n{machine}: rank {local} of {} leaves its group",
            words::run(&run)
        );
        self.did(machine, &run, Kind::RankFailed, Some(rank));
        for other in (0..ranks).filter(|other| *other != local) {
            let after = self.rng.ms(1, 60);
            let (exit, error) = (Exit::Code(1), Some(PEER_LOST));
            let (run, local) = (run.clone(), other);
            self.after(
                after,
                Event::RankEnds {
                    machine,
                    run,
                    life,
                    local,
                    exit,
                    error,
                },
            );
        }
        self.peers_will_notice(world, machine, 1, 60);
        // Mostly within the time that the coordinator gives it.
        let cleans_up = self.rng.ms(0, 12_000);
        let (exit, error) = (Exit::Code(1), Some("ValueError: labels out of range"));
        self.after(
            cleans_up,
            Event::RankEnds {
                machine,
                run,
                life,
                local,
                exit,
                error,
            },
        );
        true
    }
}
