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
        by_shell: false,
    };
    words.into_iter().enumerate().map(word).collect()
}

/// What a command runs, or why it is refused.
fn run(text: &str) -> Result<Launch, String> {
    let mut log = Verdicts::default();
    let known = Known::from([("RANK".into(), None), ("WORLD_SIZE".into(), None)]);
    let launch = read(&words(text), &known, &mut log);
    // As in a job of several ranks.
    let launch = launch.filter(|launch| crate::draft::may_stay(launch, 2, &mut log));
    match launch {
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
fn a_program_around_the_launcher_stands_around_each_rank() {
    for (text, must) in [
        (
            "nice -n 1 torchrun --nproc_per_node 2 train.py --x 1",
            "nice -n 1 python3 -u train.py --x 1",
        ),
        (
            "nice -n 1 python -m torch.distributed.run a.py",
            "nice -n 1 python -u a.py",
        ),
        (
            "/usr/bin/nice -n1 /opt/bin/torchrun a.py",
            "/usr/bin/nice -n1 /opt/bin/python3 -u a.py",
        ),
        (
            "numactl --interleave=all -- torchrun -m pkg.train --y",
            "numactl --interleave=all -- python3 -u -m pkg.train --y",
        ),
        (
            "timeout -k 10 3h torchrun --no-python ./prog x",
            "timeout -k 10 3h ./prog x",
        ),
        (
            "tini -g -- numactl -N 0 timeout 3h torchrun a.py",
            "numactl -N 0 timeout 3h python3 -u a.py",
        ),
        ("tini -- torchrun a.py", "python3 a.py"),
        ("dumb-init torchrun a.py", "python3 a.py"),
        ("nohup setsid -w torchrun a.py", "python3 a.py"),
        (
            "conda run -n train --no-capture-output torchrun a.py",
            "conda run -n train --no-capture-output python3 -u a.py",
        ),
        (
            "uv run --extra gpu torchrun --nnodes 2 a.py",
            "uv run --extra gpu python3 -u a.py",
        ),
        (
            "poetry run python -m torch.distributed.run a.py",
            "poetry run python -u a.py",
        ),
        (
            "nsys profile -t cuda -o 'r_%q{RANK}' torchrun a.py",
            "nsys profile -t cuda -o r_%q{RANK} python3 -u a.py",
        ),
        (
            "env -u LD_PRELOAD A=1 torchrun a.py",
            "env -u LD_PRELOAD A=1 python3 -u a.py",
        ),
        (
            "bash -c 'cd /x && nice torchrun a.py --rank'",
            "nice python3 -u a.py --rank",
        ),
        ("nice bash -lc 'exec torchrun a.py'", "nice python3 -u a.py"),
        ("bash -c 'time torchrun a.py'", "python3 a.py"),
        ("sh -c 'time -p torchrun a.py'", "python3 a.py"),
        (
            "/usr/bin/time -v torchrun a.py",
            "/usr/bin/time -v python3 -u a.py",
        ),
        (
            "nice python -m torch.distributed.launch a.py --z",
            "nice python -u a.py --local-rank=${local_rank} --z",
        ),
        ("python /usr/bin/torchrun --nnodes 2 a.py", "python a.py"),
        ("python3 -u /opt/bin/torchrun -m a.b", "python3 -m a.b"),
        // Without a launcher nothing is changed.
        ("nice -n 1 python a.py", "nice -n 1 python a.py"),
        ("tini -- python a.py", "tini -- python a.py"),
        ("sudo -E python a.py", "sudo -E python a.py"),
        ("nsys profile python a.py", "nsys profile python a.py"),
        (
            "nice python a.py --launcher torchrun",
            "nice python a.py --launcher torchrun",
        ),
        (
            "./entry.sh --launcher torchrun",
            "./entry.sh --launcher torchrun",
        ),
        (
            "bash -c 'python a.py --launcher torchrun | tee log'",
            "bash -c python a.py --launcher torchrun | tee log",
        ),
        (
            "bash -c '# torchrun a.py\npython a.py | tee log'",
            "bash -c # torchrun a.py\npython a.py | tee log",
        ),
    ] {
        assert_eq!(line(text), Ok(must.to_owned()), "{text}");
    }
    let launch =
        run("nice env A=1 bash -c 'cd /w && B=2 torchrun --nproc-per-node 3 a.py'").unwrap();
    assert_eq!(
        (launch.by, launch.procs.map(|given| given.value)),
        (By::Torchrun, Some(Procs::Count(3)))
    );
    assert_eq!(launch.dir.as_deref(), Some("/w"));
    assert_eq!(
        launch.env,
        [("A".into(), "1".into()), ("B".into(), "2".into())]
    );
    assert_eq!(launch.lane, Some("direct"));
    assert_eq!(
        run("nice python -m torch.distributed.launch a.py")
            .unwrap()
            .lane,
        Some("cold"),
        "torchrun puts the local rank in"
    );
}

#[test]
fn a_launcher_behind_what_hides_or_needs_it_is_refused_with_the_reason() {
    for (text, must) in [
        (
            "./entry.sh torchrun a.py",
            "starts torchrun behind ./entry.sh; Muster starts the ranks itself",
        ),
        (
            "with-secrets -- torchrun --nproc_per_node 2 a.py",
            "put what one rank runs behind it, in place of torchrun and its flags",
        ),
        (
            "nice ./entry.sh torchrun a.py",
            "starts torchrun behind ./entry.sh",
        ),
        (
            "uv run --of-tomorrow torchrun a.py",
            "does not know its option --of-tomorrow",
        ),
        (
            "python -m cProfile -o out -m torch.distributed.run a.py",
            "starts torch.distributed.run behind python -m cProfile",
        ),
        (
            "nsys profile -o report torchrun a.py",
            "starts torchrun behind nsys profile, which cannot be put around each rank: each rank would write the same file",
        ),
        ("sudo -E torchrun a.py", "ranks run as the agents' user"),
        ("env -i A=1 torchrun a.py", "tell it its place"),
        ("dumb-init -r 15:2 torchrun a.py", "another signal"),
        ("xvfb-run torchrun a.py", "add -a"),
        (
            "nice accelerate launch a.py",
            "write the script itself in place of",
        ),
        (
            "nice torchrun --nprocs_per_node 2 a.py",
            "did you mean --nproc-per-node?",
        ),
        ("nice torchrun", "names no script"),
        (
            "bash -c 'nice torchrun a.py | tee log'",
            "starts torchrun in a script for the shell",
        ),
        (
            "bash -c 'eval \"torchrun a.py\"'",
            "starts torchrun in a script for the shell",
        ),
        (
            "nice bash -c 'torchrun a.py | tee log'",
            "starts torchrun in a script for the shell",
        ),
        ("bash -c 'nice -n $RANK torchrun a.py'", "refers to RANK"),
    ] {
        let is = line(text);
        assert!(
            is.as_ref().is_err_and(|error| error.contains(must)),
            "{text}: {is:?}"
        );
    }
}

#[test]
fn one_process_of_one_node_may_start_its_ranks_itself() {
    for (text, must) in [
        ("./entry.sh torchrun a.py", "./entry.sh torchrun a.py"),
        (
            "nice nsys profile torchrun a.py",
            "nice nsys profile torchrun a.py",
        ),
        (
            "bash -c 'torchrun a.py | tee log'",
            "bash -c torchrun a.py | tee log",
        ),
    ] {
        let mut log = Verdicts::default();
        let launch = read(&words(text), &Known::new(), &mut log).unwrap();
        assert!(crate::draft::may_stay(&launch, 1, &mut log), "{text}");
        assert_eq!(log.refused(), 0, "{text}");
        let is = [&launch.command[..], &launch.args[..]].concat().join(" ");
        assert_eq!(is, must);
        let warning = log.remarks.last().unwrap();
        assert_eq!(warning.verdict, Verdict::Warning);
        assert!(
            warning.message.starts_with("starts its ranks itself"),
            "{text}"
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
        ("nice -n 1 torchrun a.py", "nice -n 1 /opt/p -u a.py"),
        ("timeout 1h nice python a.py", "timeout 1h nice /opt/p a.py"),
        ("./prog python", "./prog python"),
    ] {
        let mut launch = run(text).unwrap();
        launch.use_python("/opt/p");
        let is = [&launch.command[..], &launch.args[..]].concat().join(" ");
        assert_eq!(is, must);
    }
}
