//! The exit codes, and the stream that each output goes to, without a coordinator.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::Write,
    net::TcpListener,
    process::{Command, Output, Stdio},
};

fn muster(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    // Removes the settings of the person who runs the tests, and their cluster.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MUSTER_")) {
        command.env_remove(name);
    }
    command
        .env("MUSTER_LOCAL_DIR", "/nonexistent/muster")
        .args(args)
        .stdin(Stdio::null());
    command
}

/// Exit code, stdout, stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    read(muster(args).output().unwrap())
}

fn read(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().expect("ended by itself"),
        text(output.stdout),
        text(output.stderr),
    )
}

fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

const JOB: &str = "apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata: {name: digits}\nspec: {args: [train.py]}\n";

#[test]
fn a_wrong_command_line_is_2() {
    for (args, says) in [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["get"], "KIND [NAME]"),
        (
            &["get", "pods"],
            "error: unknown kind \"pods\": there are jobs (mj), nodes (mn) and events (ev)",
        ),
        (&["get", "job/"], "error: job/ is missing the name"),
        (&["get", "jobs", "-o", "xml"], "invalid value 'xml'"),
        (&["submit"], "--file <FILE>"),
        (
            &["submit", "-f", "/nonexistent.yaml"],
            "error: /nonexistent.yaml: No such file or directory (os error 2)",
        ),
        (
            &["submit", "-f", "/"],
            "error: /: Is a directory (os error 21)",
        ),
        (
            &["submit", "-f", "-"],
            "<stdin>:1:1: is empty; a MusterJob document is needed",
        ),
        (&["submit", "-f", "x", "--mirror-exit-code"], "--wait"),
        (&["run"], "SCRIPT"),
        (
            &["run", "--nnodes", "2:x", "t.py"],
            "write N or MIN:MAX, as in 2:4",
        ),
        (
            &["run", "--nproc-per-node", "cpu", "t.py"],
            "one process per CPU depends on the node; give the number",
        ),
        (&["squeue"], "tip: jobs are listed by `muster get jobs`"),
        (&["check", "nodes"], "which nodes? name them"),
        (&["check", "nodes", "n1", "--all"], "cannot be used with"),
        (
            &["check", "nodes", "n1", "--timeout", "5s"],
            "30s at least: torch must be imported",
        ),
        (&["dcgmi"], "are checked by `muster check nodes`"),
        (&["cordon", "n[3-1]"], "3-1 ends before it begins"),
        (
            &["delete", "job/a", "node/b"],
            "jobs and nodes need a command each",
        ),
        (
            &["run", "--active_deadlin", "4h", "t.py"],
            "did you mean --active-deadline?",
        ),
        (&["logs", "x", "--folow"], "did you mean --follow?"),
        (
            &["run", "--name", "A", "t.py"],
            "error: --name: \"A\" has 'A'",
        ),
        (
            &["run", "--wait", "--detach", "t.py"],
            "cannot be used with",
        ),
        (&["logs", "x", "--rank", "-1"], "unexpected argument '-1'"),
        (&["logs", "x", "--generation", "0"], "0 is not in 1.."),
        (
            &["logs", "x", "--previous", "--generation", "1"],
            "cannot be used with",
        ),
        (&["scale", "x"], "--nodes <K>"),
        (&["scale", "x", "--nodes", "-1"], "unexpected argument '-1'"),
        (&["wait", "x", "--for=ever"], "invalid value 'ever'"),
        (&["wait", "x", "--timeout", "soon"], "is not a period"),
        (&["describe", "jobs/"], "error: jobs/ is missing the name"),
        (&["delete", "event", "1"], "error: events cannot be deleted"),
        (&["local", "up", "--nodes", "0"], "0 is not in 1..=64"),
        (&["--server", "http://a b", "get", "jobs"], "is not a URL"),
        (&["completion", "powershell"], "invalid value 'powershell'"),
    ] {
        let (code, out, error) = run(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {error}");
        assert!(error.contains(says), "{args:?} says {error}");
        if args.contains(&"--tee") {
            assert!(
                error.contains("Usage: muster run [OPTIONS]") && !error.contains("deadline"),
                "{error}"
            );
        }
        let tips = error
            .lines()
            .filter(|line| line.trim_start().starts_with("tip:"));
        assert!(tips.count() < 2, "{args:?} says {error}");
    }
}

#[test]
fn an_unreachable_coordinator_is_5_and_says_what_to_do() {
    let server = closed_port();
    for args in [
        &["get", "jobs"][..],
        &["nodes"],
        &["events"],
        &["explain", "x"],
        &["logs", "x"],
        &["scale", "x", "--nodes", "1"],
        &["cancel", "x"],
        &["delete", "x"],
        &["wait", "x"],
        &["cordon", "n"],
        &["uncordon", "n"],
        &["describe", "job", "x"],
        &["run", "t.py"],
    ] {
        let (code, out, error) = run(&[&["--server", server.as_str()], args].concat());
        assert_eq!((code, out.as_str()), (5, ""), "{args:?}: {error}");
        let expected = format!(
            "error: cannot reach the coordinator at {server}: Connection refused (os error 111); is it running? `muster local up` \
             starts one here, --server names another\n"
        );
        assert_eq!(error, expected, "{args:?}");
    }
}

#[test]
fn the_environment_names_the_server_and_the_flag_wins() {
    let (server, other) = (closed_port(), closed_port());
    let says = |command: &mut Command| read(command.output().unwrap()).2;
    assert!(says(muster(&["get", "jobs"]).env("MUSTER_SERVER", &server)).contains(&server));
    assert!(
        says(muster(&["get", "jobs", "--server", &other]).env("MUSTER_SERVER", &server))
            .contains(&other)
    );
    assert!(
        says(&mut muster(&["get", "jobs"])).contains("http://127.0.0.1:7070")
            || std::net::TcpStream::connect("127.0.0.1:7070").is_ok()
    );
}

#[test]
fn a_job_file_is_checked_without_a_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = path("good.yaml", JOB);
    let bad = path("bad.yaml", &JOB.replace("train.py", "7"));
    let worse = path("worse.yaml", "");
    assert_eq!(
        run(&["validate", "-f", &good]),
        (0, format!("{good}: job/digits is valid\n"), String::new())
    );
    let (code, out, error) = run(&["validate", &bad, &good, &worse]);
    assert_eq!((code, out), (2, format!("{good}: job/digits is valid\n")));
    let expected = format!(
        "{bad}:4:15: spec.args[0]: is the number 7, must be a text; write \"7\"\n{worse}:1:1: is empty; a MusterJob document is needed\n"
    );
    assert_eq!(error, expected);
    let (code, out, _) = run(&["submit", "-f", &good, "--dry-run"]);
    assert_eq!(
        (code, out.as_str()),
        (0, "job/digits is valid (checked here only)\n")
    );
    assert_eq!(run(&["submit", "-f", &bad, "--dry-run=client"]).0, 2);
    let large = path("large.yaml", &"#".repeat((1 << 20) + 1));
    assert_eq!(
        run(&["validate", &large]).2,
        format!("error: {large}: is larger than 1024 KiB, too large for a job\n")
    );
}

#[test]
fn run_shows_the_job_it_would_submit() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "run",
        "--dry-run",
        "-o",
        "yaml",
        "--nnodes",
        "2:4",
        "--name",
        "d",
        "-e",
        "A=yes",
        "t.py",
        "--x",
        "1",
    ];
    let (code, out, _) = read(muster(&args).current_dir(dir.path()).output().unwrap());
    let here = dir.path().canonicalize().unwrap();
    let expected = format!(
        "apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata:\n  name: d\nspec:\n  replicas: 4\n  minReplicas: 2\n  \
         maxReplicas: 4\n  command:\n  - python3\n  args:\n  - t.py\n  - --x\n  - \"1\"\n  env:\n  - name: A\n    value: \"yes\"\n  \
         workingDir: {}\n",
        here.display()
    );
    assert_eq!((code, out), (0, expected));
    let mut validate = muster(&["validate", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    validate
        .stdin
        .take()
        .unwrap()
        .write_all(run(&args).1.as_bytes())
        .unwrap();
    assert!(
        validate.wait().unwrap().success(),
        "what is shown can be submitted"
    );
}

#[test]
fn a_program_without_arguments_is_shown_as_it_is_run() {
    let line = ["run", "--dry-run", "-o", "yaml", "--no-python", "./run.sh"];
    let (code, out, error) = run(&line);
    assert_eq!(code, 0, "{error}");
    assert!(
        out.contains("  name: run-") && out.contains("  command:\n  - ./run.sh\n"),
        "{out}"
    );
    assert!(!out.contains("args"), "{out}");
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child = muster(&["completion", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let (code, _, error) = read(child.wait_with_output().unwrap());
    assert_eq!((code, error.as_str()), (0, ""));
}

#[test]
fn local_commands_without_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().to_str().unwrap();
    let none = format!("error: no local cluster in {d}; `muster local up` starts one\n");
    for args in [
        &["local", "status"][..],
        &["local", "add-node"],
        &["local", "kill-node", "node-1"],
        &["local", "kill-agent", "node-1"],
        &["local", "start-agent", "node-1"],
        &["local", "start-node", "node-1"],
        &["local", "kill-coordinator"],
        &["local", "start-coordinator"],
    ] {
        assert_eq!(
            run(&[args, &["--dir", d]].concat()),
            (1, String::new(), none.clone()),
            "{args:?}"
        );
    }
    let (code, out, error) = run(&["local", "down", "--dir", d]);
    assert_eq!(
        (code, out.as_str(), error),
        (0, "", format!("no local cluster in {d}\n"))
    );
    let (code, _, error) = run(&["local", "up", "--dir", d, "--bin-dir", "/nonexistent"]);
    assert_eq!(
        (code, error.as_str()),
        (
            1,
            "error: /nonexistent/muster-coordinator is not there; build all of Muster, or give --bin-dir\n"
        )
    );
    std::fs::create_dir(dir.path().join("nodes")).unwrap();
    std::fs::remove_file(dir.path().join("cluster.json")).unwrap();
    let (code, _, error) = run(&["local", "up", "--dir", d]);
    assert_eq!(code, 1);
    assert!(error.contains("choose another --dir"), "{error}");
}

#[test]
fn torchruns_line_is_taken_as_it_is() {
    let line = "run --dry-run -o yaml torchrun --standalone --nproc_per_node 2 --rdzv-backend=c10d --tee 3 -r3 --virtual-local-rank \
                --log-dir /tmp/x t.py --lr 1 --nnodes 3";
    let words: Vec<&str> = line.split_whitespace().collect();
    let (code, out, said) = run(&words);
    assert_eq!(code, 0, "{said}");
    let plain: Vec<&str> = "run --dry-run -o yaml --nproc-per-node 2 t.py --lr 1 --nnodes 3"
        .split_whitespace()
        .collect();
    // The end of a name is random.
    let job = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains("name: t-"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(job(&out), job(&run(&plain).1), "{out}");
    let notes: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("left out"))
        .collect();
    assert_eq!(
        notes,
        [
            "Muster starts the ranks itself, so torchrun is left out",
            "left out: --standalone, --rdzv-backend=c10d, --tee 3, -r3, --virtual-local-rank, --log-dir /tmp/x: Muster does the rendezvous \
             itself; Muster keeps the output of every rank (`muster logs`); ranks see all GPUs of their group, and take theirs by LOCAL_RANK",
        ],
        "{said}"
    );
    assert!(
        said.contains("behind t.py, and so for the script: --nnodes. "),
        "{said}"
    );
}
