use clap::Parser;

use super::*;
use crate::args::{Cli, Command};

fn parse(line: &str) -> Run {
    let words = std::iter::once("muster").chain(line.split_whitespace());
    match Cli::try_parse_from(words)
        .unwrap_or_else(|error| panic!("{line}: {error}"))
        .command
    {
        Command::Run(run) => *run,
        other => panic!("{other:?}"),
    }
}

fn job(line: &str) -> JobDocument {
    document(&parse(line), "/home/ada", None, |name| {
        (name == "HOME").then(|| "/home/ada".to_owned())
    })
    .unwrap()
}

fn refused(line: &str) -> String {
    document(&parse(line), "/home/ada", None, |_| None)
        .unwrap_err()
        .to_string()
}

#[test]
fn torchrun_s_spelling_is_understood() {
    for line in [
        "run --nnodes 2:4 --nproc-per-node 1 --max-restarts 5 --name d -- train.py --epochs 3 -v",
        "run --nnodes=2:4 --nproc_per_node=1 --max_restarts=5 --name d train.py --epochs 3 -v",
    ] {
        let job = job(line);
        let spec = job.spec;
        assert_eq!(job.metadata.name, "d");
        assert_eq!(
            (spec.replicas, spec.min_replicas, spec.max_replicas),
            (Some(4), Some(2), Some(4))
        );
        assert_eq!(spec.proc_per_node, Some(1));
        assert_eq!(
            (spec.command, spec.args),
            (
                vec!["python3".into()],
                ["train.py", "--epochs", "3", "-v"]
                    .map(String::from)
                    .to_vec()
            )
        );
        assert_eq!(spec.restart_policy.unwrap().max_restarts, Some(5));
        assert_eq!(spec.working_dir.as_deref(), Some("/home/ada"));
    }
}

#[test]
fn a_fence_is_a_period_within_bounds() {
    assert_eq!(
        job("run --fence-after 60s t.py")
            .spec
            .fence_after
            .as_deref(),
        Some("60s")
    );
    assert_eq!(job("run t.py").spec.fence_after, None);
    assert!(
        refused("run --fence-after 5s t.py")
            .contains("--fence-after: is 5s, must be between 10s and 1h")
    );
}

#[test]
fn what_a_job_file_can_say_a_flag_can() {
    let spec = job("run --launch cold --step-pattern it(\\d+) --stop-grace-period 1m --scale-up-cooldown 0s t.py").spec;
    assert_eq!(
        (spec.launch.as_deref(), spec.step_pattern.as_deref()),
        (Some("cold"), Some("it(\\d+)"))
    );
    assert_eq!(
        (
            spec.stop_grace_period.as_deref(),
            spec.scale_up_cooldown.as_deref()
        ),
        (Some("1m"), Some("0s"))
    );
    let patient = job("run --shutdown-timeout=120 t.py").spec;
    assert_eq!(patient.stop_grace_period.as_deref(), Some("120"));
    assert!(refused("run --launch warm t.py").starts_with("error: --launch: "));
    assert!(
        refused("run --stop-grace-period soon t.py").starts_with("error: --stop-grace-period: ")
    );
    assert!(refused("run --scale_up_cooldown x t.py").starts_with("error: --scale-up-cooldown: "));
}

#[test]
fn a_program_of_its_own_may_name_the_interpreter_that_runs_torchrun() {
    let path = |name: &str| (name == "PATH").then(|| "/usr/bin".to_owned());
    let spec = document(
        &parse("run --no-python --python .venv/bin/python3 ./train.sh 1"),
        "/home/ada",
        None,
        path,
    )
    .unwrap()
    .spec;
    assert_eq!(spec.command, ["./train.sh"]);
    assert_eq!(
        (spec.env[0].name.as_str(), spec.env[0].value.as_str()),
        ("PATH", "/home/ada/.venv/bin:/usr/bin")
    );
    assert!(
        refused("run --no-python --python python3.12 ./train.sh 1")
            .contains("give the path of a python3")
    );
    assert!(
        refused("run --no-python --python /opt/python3 --env PATH=/bin ./train.sh 1")
            .contains("give one of them")
    );
}

#[test]
fn modules_programs_and_interpreters() {
    let module = job("run --python .venv/bin/python -m my.train -x").spec;
    assert_eq!(module.command, ["/home/ada/.venv/bin/python"]);
    assert_eq!(module.args, ["-m", "my.train", "-x"]);
    let program = job("run --no-python ./train.sh 1").spec;
    assert_eq!(
        (program.command, program.args),
        (vec!["./train.sh".into()], vec!["1".into()])
    );
    assert_eq!(
        job("run --gpus-per-node 8 --nproc-per-node gpu t.py")
            .check()
            .unwrap()
            .1
            .proc_per_node,
        8
    );
    assert_eq!(
        job("run --nproc-per-node auto t.py")
            .check()
            .unwrap()
            .1
            .proc_per_node,
        1
    );
}

#[test]
fn variables_come_with_a_value_or_from_here() {
    let env = job("run -e A=b=c --env HOME t.py").spec.env;
    assert_eq!((env[0].name.as_str(), env[0].value.as_str()), ("A", "b=c"));
    assert_eq!(
        (env[1].name.as_str(), env[1].value.as_str()),
        ("HOME", "/home/ada")
    );
    assert_eq!(
        refused("run --env NOT_SET t.py"),
        "--env: NOT_SET is not set here; write NOT_SET=VALUE"
    );
}

#[test]
fn errors_name_the_flag() {
    assert_eq!(
        refused("run --nnodes 4:2 t.py"),
        "error: --nnodes: is 4, must not be more than maxReplicas, which is 2"
    );
    assert_eq!(
        refused("run --name A t.py"),
        "error: --name: \"A\" has 'A': only lower-case letters, digits and '-' are allowed"
    );
    assert_eq!(
        refused("run --nproc-per-node gpu t.py"),
        "--nproc-per-node gpu: say how many with --gpus-per-node"
    );
    assert!(refused("run --env RANK=1 t.py").starts_with("error: --env: RANK is set by Muster"));
}

#[test]
fn a_job_without_name_gets_one() {
    for (line, stem) in [
        ("run examples/digits/train.py", "train-"),
        ("run 01_train.py --epochs 3", "train-"),
        ("run -m my.pkg.train", "train-"),
        ("run -- -u -m pkg.__main__ train.py", "pkg-main-"),
        ("run -- -X dev 3-finetune.py", "finetune-"),
        ("run --no-python ./run.sh", "run-"),
        ("run --no-python /opt/bin/python3 train.py", "train-"),
        ("run .", "ada-"),
    ] {
        let name = job(line).metadata.name;
        assert!(name.starts_with(stem), "{line}: {name}");
    }
    assert_ne!(job("run a.py").metadata.name, job("run a.py").metadata.name);
}

#[test]
fn a_program_needs_no_arguments() {
    for program in ["./run.sh", "/workspace/run.sh", "train"] {
        let spec = job(&format!("run --no-python {program}")).spec;
        assert_eq!(
            (spec.command, spec.args),
            (vec![program.to_owned()], vec![])
        );
    }
    assert!(refused("run --no-python python3").starts_with("error: SCRIPT: names no script"));
}
