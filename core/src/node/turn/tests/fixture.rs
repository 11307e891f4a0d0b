//! Assignments and orders like those that a session brings.

use super::*;
use crate::{
    layout::Layout,
    spec::{Framework, Standbys},
};

pub(crate) fn assignment(job: &str, generation: u64) -> Assignment {
    Assignment {
        run: run(job, generation),
        name: JobName {
            namespace: "default".into(),
            name: job.into(),
        },
        rendezvous: format!("{job}-g{generation}"),
        node_rank: 0,
        node_count: 2,
        proc_per_node: 1,
        first_rank: 0,
        world_size: 2,
        store_host: "n1".into(),
        hosts_store: true,
        store_clients: Vec::new(),
        env_files: BTreeMap::new(),
        command: vec!["python3".into()],
        args: vec!["train.py".into()],
        env: BTreeMap::new(),
        working_dir: None,
        image: None,
        gpus: Vec::new(),
        hides_gpus: false,
        launch: Launch::Cold,
        standbys: Standbys::Auto,
        inspect: Default::default(),
        stop_grace: Duration::from_secs(10),
        step_pattern: None,
        checkpoint_pattern: None,
        restart_count: 0,
        profile: Profile::default(),
        profile_hash: Profile::default().hash(),
        fence_after: None,
        framework: Framework::Torch,
        layout: Layout::default(),
        members: Vec::new(),
        programs: Vec::new(),
        owner: None,
    }
}

pub(super) fn wanted(number: u8, generation: u64, kind: u8) -> DesiredRun {
    let name = job(number);
    match kind {
        0 => ready(name, generation),
        1 | 2 => running(name, generation),
        3 => stopped(name, generation, 1),
        4 => gone(name, generation, false),
        _ => {
            let other = Assignment {
                restart_count: 99,
                ..assignment(name, generation)
            };
            DesiredRun {
                run: run(name, generation),
                target: Target::Running(Box::new(other), store(7).into()),
            }
        }
    }
}

pub(super) fn desired(term: u64, epoch: u64, runs: Vec<DesiredRun>) -> Desired {
    Desired {
        term: Term(term),
        epoch: NodeEpoch(epoch),
        runs,
        labels: Labels::default(),
        prewarm: Vec::new(),
        retire: None,
    }
}
