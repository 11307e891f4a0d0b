use super::*;
use crate::spec::{API_VERSION, JobDocument, KIND, Metadata, RoleDocument, SpecDocument};

fn found(words: &[&str]) -> Option<String> {
    started_by(words).map(|found| found.sentence())
}

fn in_words(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    found(&words)
}

#[test]
fn a_launcher_is_found_behind_whatever_runs_it() {
    for (text, must) in [
        ("torchrun train.py", "starts torchrun"),
        ("/opt/bin/torchrun --nnodes 2 train.py", "starts torchrun"),
        ("torchrun", "starts torchrun"),
        (
            "python3 -u -m torch.distributed.run train.py",
            "starts torch.distributed.run",
        ),
        (
            "python -m torch.distributed.launch train.py",
            "starts torch.distributed.launch",
        ),
        (
            "python3 /usr/local/bin/torchrun --nproc_per_node 2 train.py",
            "starts torchrun",
        ),
        ("accelerate launch train.py", "starts accelerate"),
        ("deepspeed train.py --deepspeed", "starts deepspeed"),
        ("nice -n 1 torchrun train.py", "starts torchrun behind nice"),
        (
            "numactl -N 0 timeout 60 python -m torch.distributed.run train.py",
            "starts torch.distributed.run behind numactl and timeout",
        ),
        (
            "env -u A B=c torchrun train.py",
            "starts torchrun behind env",
        ),
        (
            "uv run --of-tomorrow torchrun train.py",
            "starts torchrun behind uv run (Muster does not know its option --of-tomorrow, so it cannot take torchrun out)",
        ),
        (
            "./entry.sh torchrun train.py",
            "starts torchrun behind ./entry.sh",
        ),
        (
            "bash entry.sh torchrun --nnodes 2 train.py",
            "starts torchrun behind bash",
        ),
        (
            "with-secrets -v -- torchrun train.py",
            "starts torchrun behind with-secrets",
        ),
        (
            "docker run image torchrun --nproc-per-node=2 -m a.b",
            "starts torchrun behind docker",
        ),
        (
            "my-launch python -m torch.distributed.run a.py",
            "starts torch.distributed.run behind my-launch",
        ),
        (
            "./run -m torch.distributed.run a.py",
            "starts torch.distributed.run behind ./run",
        ),
        // It is given what torchrun would be given.
        (
            "./prog --launcher torchrun --nproc_per_node 4 x",
            "starts torchrun behind ./prog",
        ),
        (
            "python -m cProfile -o out -m torch.distributed.run a.py",
            "starts torch.distributed.run behind python -m cProfile",
        ),
        (
            "python3 -m debugpy --listen 5678 -m torch.distributed.run a.py",
            "starts torch.distributed.run behind python3 -m debugpy",
        ),
        (
            "coverage run -m torch.distributed.run a.py",
            "starts torch.distributed.run behind coverage",
        ),
    ] {
        assert_eq!(in_words(text).as_deref(), Some(must), "{text}");
    }
}

#[test]
fn a_launcher_is_found_in_the_text_of_a_shell() {
    for text in [
        "torchrun train.py | tee log",
        "cd /x && exec torchrun train.py > log",
        "A=1 B='x y' nice torchrun train.py; true",
        "if true; then torchrun train.py; fi",
        "for i in 1 2; do\n  torchrun --nnodes 2 train.py\ndone",
        "! torchrun train.py",
        "time -p torchrun train.py",
        "(cd /x; torchrun train.py) 2>&1",
        "CMD=\"torchrun --nnodes 2\"\n$CMD train.py",
        "export RUN='nice torchrun train.py'; eval $RUN",
        "eval \"torchrun train.py\"",
        "alias run='torchrun train.py'",
        "python $(which torchrun) --nproc_per_node 2 train.py",
        "\"$(command -v torchrun)\" train.py",
        "python `which torchrun` train.py",
        "bash -c 'torchrun train.py > log'",
        "nohup torchrun train.py &\nwait",
        "srun torchrun --nproc_per_node 4 train.py",
        "torchrun \\\n  --nnodes 2 \\\n  train.py || exit 1",
        "x=1\n/opt/bin/torchrun a.py > log",
        "cat > run.sh <<EOF\ntorchrun train.py\nEOF\nbash run.sh",
        "bash <<-'END'\n  torchrun train.py\n  END",
        "cat > t.py << EOM\n# don't\nEOM\ntorchrun t.py",
    ] {
        for shell in [
            &["bash", "-c"][..],
            &["/bin/sh", "-lc"],
            &["bash", "-e", "-o", "pipefail", "-c"],
        ] {
            let is = found(&[shell, &[text]].concat());
            assert!(
                is.as_ref()
                    .is_some_and(|is| is.starts_with("starts torchrun behind")),
                "{text}: {is:?}"
            );
        }
    }
}

#[test]
fn what_only_names_a_launcher_is_none() {
    for text in [
        "python train.py --launcher torchrun",
        "python train.py torchrun other.py",
        "./train --launcher torchrun",
        "./train --launcher torchrun --epochs 3",
        "./train --launcher torchrun config.yaml",
        "./train --strategy deepspeed --epochs 3",
        "echo torchrun train.py",
        "which torchrun",
        "torchrun --help",
        "nice python train.py",
        "python -m my.torchrun a.py",
        "python -m coverage run train.py --launcher torchrun",
        "pip install torchrun",
        "train torchrun",
        "grep torchrun train.py",
        "accelerate config",
        "deepspeed --version",
    ] {
        assert_eq!(in_words(text), None, "{text}");
    }
    for text in [
        "# torchrun train.py\npython train.py",
        "python train.py # not torchrun train.py",
        "echo 'torchrun train.py' && python train.py",
        "command -v torchrun >/dev/null || pip install torch; python train.py",
        "[ -x \"$(command -v torchrun)\" ] && python train.py",
        "python train.py --launcher torchrun | tee log",
        "torchrun --version; python train.py",
        "NAME=torchrun python train.py",
        "pkill -f torchrun; python train.py",
        "python - <<< 'import torch'",
        "accelerate = 1; import deepspeed",
        "cat > t.py <<'EOF'\n\"\"\"Usage:\n  torchrun --nnodes 2 t.py\n\"\"\"\nEOF\npython t.py",
    ] {
        assert_eq!(found(&["bash", "-c", text]), None, "{text}");
    }
}

#[test]
fn shells_in_shells_end_soon() {
    let mut text = "torchrun a.py".to_owned();
    for _ in 0..12 {
        text = format!("bash -c {:?}", text);
    }
    assert_eq!(started_in(&text), None);
}

fn document(replicas: i64, procs: i64, words: &[&str]) -> JobDocument {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: "a".into(),
            namespace: None,
        },
        spec: SpecDocument {
            replicas: Some(replicas),
            proc_per_node: Some(procs),
            command: words[..1].to_vec(),
            args: words[1..].to_vec(),
            ..SpecDocument::default()
        },
    }
}

fn refused(document: &JobDocument) -> Vec<String> {
    let errors = document.check().err().unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn only_a_world_of_several_ranks_must_not_start_its_own() {
    let words = ["nice", "torchrun", "--nproc-per-node", "2", "train.py"];
    for (replicas, procs) in [(2, 1), (1, 2)] {
        let errors = refused(&document(replicas, procs, &words));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("spec.args: starts torchrun behind nice, and the job has 2 ranks: each of them would start a world of its own"),
            "{errors:?}"
        );
    }
    // One process on one node may well start the ranks itself.
    assert_eq!(refused(&document(1, 1, &words)), Vec::<String>::new());
    // It may grow.
    let mut grows = document(1, 1, &words);
    grows.spec.max_replicas = Some(2);
    assert_eq!(refused(&grows).len(), 1);
    // Whoever means it says so.
    let mut plain = document(2, 1, &words);
    plain.spec.framework = Some("plain".into());
    assert_eq!(refused(&plain), Vec::<String>::new());
    let script = document(2, 1, &["bash", "-c", "torchrun train.py | tee log"]);
    assert!(refused(&script)[0].contains("starts torchrun behind bash -c"));
}

#[test]
fn the_role_that_starts_its_own_is_named() {
    let role = |name: &str, words: &[&str]| RoleDocument {
        name: name.into(),
        command: vec![words[0].into()],
        args: words[1..].iter().map(|word| (*word).to_owned()).collect(),
        ..RoleDocument::default()
    };
    let mut document = document(1, 1, &["python3", "train.py"]);
    document.spec.command.clear();
    document.spec.args.clear();
    document.spec.replicas = None;
    document.spec.proc_per_node = None;
    document.spec.roles = vec![
        role("chief", &["python3", "train.py"]),
        role("worker", &["tini", "--", "torchrun", "train.py"]),
    ];
    let errors = refused(&document);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with(
            "spec.roles[1].args: starts torchrun behind tini, and the job has 2 ranks"
        ),
        "{errors:?}"
    );
}

/// Runs it on another thread, and fails if it takes so long that it must be more than linear.
fn at_once<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(what()));
    done.recv_timeout(std::time::Duration::from_secs(5))
        .expect("it takes too long")
}

#[test]
fn many_interpreters_or_shells_take_no_more_time_than_their_words() {
    let pdb = ["python", "-m", "pdb"].repeat(85);
    let words = pdb.clone();
    assert_eq!(at_once(move || found(&words)), None);
    let then = |last: &[&'static str]| {
        let words = [&pdb[..], last].concat();
        at_once(move || found(&words)).unwrap_or_default()
    };
    for last in [
        &["torchrun", "train.py"][..],
        &["sh", "-c", "nice torchrun train.py"],
        &[
            "bash",
            "-c",
            "true",
            "python",
            "-m",
            "torchrun",
            "--standalone",
        ],
    ] {
        assert!(
            then(last).starts_with("starts torchrun behind python -m pdb"),
            "{last:?}"
        );
    }
    // Texts in texts, each shared by many shells.
    let text = (0..6).fold(String::new(), |text, _| {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        format!("run {} -c \"{quoted}\"", "sh -o ".repeat(15))
    });
    assert_eq!(at_once(move || started_in(&text)), None);
    for word in [
        "sh -o ",
        "python -W ",
        "A=b ",
        "if ",
        "eval ",
        "python -m pdb ",
    ] {
        let text = format!("run {}", word.repeat((64 << 10) / word.len()));
        assert_eq!(at_once(move || started_in(&text)), None, "{word}");
        let text = word.repeat((64 << 10) / word.len());
        assert_eq!(at_once(move || started_in(&text)), None, "{word}");
    }
}

#[test]
fn here_documents_without_an_end_take_no_more_time_than_their_lines() {
    let lines = "a<<b\n".repeat((64 << 10) / 5);
    let long = lines.clone();
    assert_eq!(at_once(move || started_in(&long)), None);
    let last = format!("{lines}torchrun train.py\n");
    assert!(at_once(move || started_in(&last)).is_some());
    // One that has an end after them is still left out.
    let whole = "n=$((1<<k))\ncat > x <<END\ntorchrun train.py\nEND\n";
    assert_eq!(started_in(whole), None);
}
