//! What is started in place of a launcher that fails before any rank has said hello.

use super::*;

/// The launcher is killed while its order waits, so no rank has said hello.
#[test]
fn where_the_launcher_fails_by_itself_the_ranks_are_executed() {
    let mut warm = Warm::new();
    let spec = warm.rig.program(&python(), &["-c", "print('torchrun')"], 2);
    let generation = warm.fork();
    let say = "echo rank $RANK of $WORLD_SIZE; test -n \"$TORCHELASTIC_ERROR_FILE\"";
    let order = Order {
        lane: Lane::Fork,
        options: vec![],
        argv: vec!["train.py".into()],
        command: ["/bin/sh", "-c", say].map(str::to_owned).into(),
        run_id: "r".into(),
        peer_lost: vec![],
        lacks: Vec::new(),
        inspect: false,
        collectives: false,
    };
    let copy = copy_of(&generation.dir);
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(copy).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    generation.client.start(StartSpec {
        env: environment(generation.dir.to_str().unwrap()),
        cwd: generation.dir.clone(),
        order: Some(order),
        ..spec
    });
    signal(rustix::process::Signal::KILL);
    let status = generation.client.until_dead();
    assert!(status.fell_back && !lives(copy));
    let ends: Vec<_> = status.ranks.iter().map(|rank| rank.exit).collect();
    assert_eq!(ends, [Some(Exit::Code { code: 0 }); 2], "{status:#?}");
    for rank in ["0", "1"] {
        let log = fs::read_to_string(generation.dir.join(format!("logs/rank-{rank}.log"))).unwrap();
        assert!(log.contains(&format!("rank {rank} of ")), "{log}");
    }
    let log = fs::read_to_string(generation.dir.join("logs/launcher.log")).unwrap();
    assert!(!log.contains("torchrun"), "{log}");
}

/// The order of an older agent does not say what a rank executes.
#[test]
fn where_the_launcher_fails_by_itself_torchrun_is_executed() {
    let mut warm = Warm::new();
    let script = "print('torchrun in its place')";
    let spec = warm.rig.program(&python(), &["-c", script], 2);
    let generation = warm.fork();
    let missing = generation.dir.join("no/such/folder/train.py");
    // The script is missing, and `ranks.sock` is removed before the start, so the launcher fails
    // before any rank says hello.
    let argv = vec![missing.to_str().unwrap().to_owned()];
    let order = Order {
        lane: Lane::Fork,
        options: vec![],
        argv,
        command: vec![],
        run_id: "r".into(),
        peer_lost: vec![],
        lacks: Vec::new(),
        inspect: false,
        collectives: false,
    };
    let copy = copy_of(&generation.dir);
    fs::remove_file(generation.dir.join("ranks.sock")).unwrap();
    generation.client.start(StartSpec {
        env: environment(generation.dir.to_str().unwrap()),
        cwd: generation.dir.clone(),
        order: Some(order),
        ..spec
    });
    let status = generation.client.until_dead();
    assert!(status.fell_back && !lives(copy));
    assert_eq!(status.launcher.unwrap().exit, Some(Exit::Code { code: 0 }));
    let log = fs::read_to_string(generation.dir.join("logs/launcher.log")).unwrap();
    assert!(log.contains("torchrun in its place"), "{log}");
}
