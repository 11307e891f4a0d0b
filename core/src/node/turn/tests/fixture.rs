//! An assignment like those that come down the session.

use super::*;

pub(crate) fn assignment(job: &str, generation: u64) -> Assignment {
    Assignment {
        run: run(job, generation),
        name: JobName { namespace: "default".into(), name: job.into() },
        rendezvous: format!("{job}-g{generation}"),
        node_rank: 0,
        node_count: 2,
        proc_per_node: 1,
        first_rank: 0,
        world_size: 2,
        store_host: "n1".into(),
        hosts_store: true,
        command: vec!["python3".into()],
        args: vec!["train.py".into()],
        env: BTreeMap::new(),
        working_dir: None,
        gpus: Vec::new(),
        launch: Launch::Cold,
        stop_grace: Duration::from_secs(10),
        step_pattern: None,
        restart_count: 0,
        profile: Profile::default(),
        profile_hash: Profile::default().hash(),
        fence_after: None,
    }
}
