#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;
use crate::verdict::Verdict;

fn words(text: &str) -> Vec<Word> {
    let words = shell::words(text).unwrap();
    let word = |(i, text): (usize, String)| Word {
        text,
        place: Place {
            line: 1,
            column: i as u64 + 1,
        },
        path: format!("command[{i}]"),
        on_node: None,
    };
    words.into_iter().enumerate().map(word).collect()
}

/// What a command runs, or why it is refused.
fn run(text: &str) -> Result<Launch, String> {
    let mut log = Verdicts::default();
    let known = Known::from([("RANK".into(), None), ("WORLD_SIZE".into(), None)]);
    match read(&words(text), &known, &mut log) {
        Some(launch) if log.refused() == 0 => Ok(launch),
        _ => {
            let mut remarks = log.remarks.into_iter();
            let refusal = remarks.find(|remark| remark.verdict == Verdict::Refusal);
            Err(refusal.map_or_else(String::new, |remark| remark.message))
        }
    }
}

fn line(text: &str) -> Result<String, String> {
    let launch = run(text)?;
    Ok([&launch.command[..], &launch.args[..]].concat().join(" "))
}

#[test]
fn the_launcher_is_taken_off() {
    for (text, must) in [
        ("torchrun train.py --x 1", "python3 train.py --x 1"),
        ("/opt/bin/torchrun train.py", "/opt/bin/python3 train.py"),
        ("python -m torch.distributed.run a.py", "python a.py"),
        (
            "python3 -u -X dev -m torch.distributed.run a.py",
            "python3 a.py",
        ),
        ("torchrun -m pkg.train --y", "python3 -m pkg.train --y"),
        ("torchrun --module pkg.train", "python3 -m pkg.train"),
        ("torchrun --no-python ./prog x", "./prog x"),
        (
            "torchrun --no_python python3 -c code",
            "env python3 -c code",
        ),
        (
            "torchrun --rdzv_id 1 --rdzv-backend=c10d --rdzv_endpoint h:1 --monitor_interval=1 -t 3 --run-path a.py",
            "python3 a.py",
        ),
        ("env A=1 B=2 torchrun a.py", "python3 a.py"),
        (
            "python -m torch.distributed.launch a.py --z",
            "python a.py --local-rank=${local_rank} --z",
        ),
        (
            "python -m torch.distributed.launch --use_env a.py",
            "python a.py",
        ),
        (
            "deepspeed a.py --deepspeed",
            "python3 a.py --local_rank=${local_rank} --deepspeed",
        ),
        (
            "deepspeed --no_local_rank --num_gpus 2 a.py",
            "python3 a.py",
        ),
        // Not a launcher.
        (
            "python train.py --launcher torchrun",
            "python train.py --launcher torchrun",
        ),
        ("python -m my.torchrun a", "python -m my.torchrun a"),
        ("./train --nproc_per_node 4", "./train --nproc_per_node 4"),
        ("python -c 'import torch'", "env python -c import torch"),
        ("python -W error -c x", "env python -W error -c x"),
        (
            "bash -c 'python a.py && python b.py'",
            "bash -c python a.py && python b.py",
        ),
        ("bash -lc 'python a.py'", "python a.py"),
        ("bash -o pipefail -ec 'python a.py'", "python a.py"),
        ("sh -c \"bash -c 'torchrun a.py'\"", "python3 a.py"),
        (
            "bash -c 'accelerate = 1; import deepspeed'",
            "bash -c accelerate = 1; import deepspeed",
        ),
    ] {
        assert_eq!(line(text), Ok(must.to_owned()), "{text}");
    }
}

#[test]
fn a_launcher_that_stays_is_refused() {
    for (text, must) in [
        ("torchrun", "names no script"),
        ("torchrun --nnodes 2", "names no script"),
        ("torchrun --nproc_per_node", "has no value"),
        (
            "torchrun --nproc_per_node two a.py",
            "must be auto, gpu, cpu or a number",
        ),
        ("torchrun --nnodes a:b a.py", "must be N or MIN:MAX"),
        ("torchrun --max-restarts many a.py", "must be a number"),
        (
            "torchrun --nprocs_per_node 2 a.py",
            "did you mean --nproc-per-node?",
        ),
        ("torchrun --xyz 2 a.py", "is no flag of torchrun"),
        (
            "torchrun --virtual-local-rank a.py",
            "show each rank one GPU",
        ),
        ("deepspeed --autotuning run a.py", "many jobs of its own"),
        (
            "accelerate launch a.py",
            "write the script itself in place of",
        ),
        (
            "python -m accelerate.commands.launch a.py",
            "starts processes on other nodes",
        ),
        (
            "mpirun -np 2 python a.py",
            "starts processes on other nodes by itself, which Muster cannot tell its place here; write an MPIJob",
        ),
        (
            "bash -c 'torchrun a.py | tee log'",
            "starts torchrun in a script",
        ),
        (
            "bash -c 'x=1\n/opt/bin/torchrun a.py > log'",
            "starts torchrun in a script",
        ),
        (
            "bash -c 'python -m torch.distributed.run a.py; true'",
            "starts torch.distributed.run in a script",
        ),
        (
            "bash -c 'cd /x; accelerate launch a.py > log'",
            "starts accelerate in a script",
        ),
        (
            "bash -c 'deepspeed a.py > log'",
            "starts deepspeed in a script",
        ),
        ("bash -c 'python a.py --rank $RANK'", "refers to RANK"),
        (
            "bash -c 'torchrun --nproc_per_node $RANK a.py'",
            "refers to RANK",
        ),
    ] {
        let is = line(text);
        assert!(
            is.as_ref().is_err_and(|error| error.contains(must)),
            "{text}: {is:?}"
        );
    }
}

#[test]
fn flags_are_read() {
    let launch =
        run("torchrun --nproc_per_node=2 --nnodes 1:4 --max_restarts 5 a.py --nnodes 9").unwrap();
    assert_eq!(launch.procs.map(|given| given.value), Some(Procs::Count(2)));
    assert_eq!(launch.nodes.map(|given| given.value), Some((1, 4)));
    assert_eq!(launch.max_restarts, Some(5));
    assert_eq!(launch.lane, None);
    let launch = run(
        "bash -c 'export A=1; cd /w && B=2 torchrun --nnodes=$WORLD_SIZE --node_rank $RANK a.py'",
    )
    .unwrap();
    assert_eq!(
        launch.env,
        [("A".into(), "1".into()), ("B".into(), "2".into())]
    );
    assert_eq!(launch.dir.as_deref(), Some("/w"));
    assert_eq!(launch.nodes, None);
    assert_eq!(
        run("python -m torch.distributed.launch a.py").unwrap().lane,
        Some("cold")
    );
    assert_eq!(run("./prog").unwrap().lane, Some("direct"));
    assert_eq!(
        run("torchrun --no-python ./prog").unwrap().lane,
        Some("direct")
    );
    assert!(
        run("torchrun --standalone a.py")
            .unwrap()
            .standalone
            .is_some()
    );
}

#[test]
fn the_sites_interpreter_takes_the_place_of_the_images() {
    for (text, must) in [
        ("python3.10 a.py", "/opt/p a.py"),
        ("torchrun a.py", "/opt/p a.py"),
        ("python -c x", "env /opt/p -c x"),
        ("./prog python", "./prog python"),
    ] {
        let mut launch = run(text).unwrap();
        launch.use_python("/opt/p");
        let is = [&launch.command[..], &launch.args[..]].concat().join(" ");
        assert_eq!(is, must);
    }
}
