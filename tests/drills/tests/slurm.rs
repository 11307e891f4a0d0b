//! Clusters inside an allocation of Slurm: `muster run --slurm` and `muster slurm up`. Three nodes, all on this machine. Slurm is a stand-in
//! that starts tasks and signals them, and with `make slurm` Slurm itself.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Lines, Read, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
};

use muster_drills::{kill, lives, processes_of, program, until};
use rustix::process::Signal;
use serde_json::Value;

#[path = "slurm/site.rs"]
mod site;

use site::{Place, Site};

const SCRIPT: &str = "\
import os, signal, sys
def saved(*_):
    print('saved by rank', os.environ['RANK'], flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, saved)
told = sorted(name for name in os.environ if name.startswith(('SLURM', 'PMI', 'OF_THE_BATCH')))
print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'sees', *told, flush=True)
if sys.argv[1:] == ['stay']:
    signal.pause()
sys.exit(7 if sys.argv[1:] == ['fail'] else 0)
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the script in an allocation, on all its nodes unless the arguments say otherwise.
fn run(site: &Site, arguments: &[&str]) -> Command {
    let mut words = vec!["run", "--slurm", "--python", site.python()];
    words.extend(arguments);
    site.muster(&words)
}

fn output_of(site: &Site, arguments: &[&str]) -> (Output, String) {
    let output = run(site, arguments).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    (output, said)
}

fn a_job_runs_and_nothing_is_left(site: &Site) {
    let (output, said) = output_of(site, &["train.py"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for rank in 0..3 {
        // No rank takes itself for a task of Slurm.
        let line = format!("[rank {rank}] rank {rank} of 3 sees OF_THE_BATCH_SCRIPT");
        assert!(said.lines().any(|it| it == line), "{said}");
    }
    site.expect_nothing_left();

    let (failed, said) = output_of(
        site,
        &["--nnodes", "2", "--max-restarts", "0", "train.py", "fail"],
    );
    assert_eq!(failed.status.code(), Some(3), "{said}");
    site.expect_nothing_left();
}

fn a_stop_before_the_time_is_up_lets_workers_save(site: &Site) {
    let mut child = run(site, &["train.py", "stay"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let started = lines.by_ref().map(Result::unwrap);
    let started = started.filter(|line| line.contains(" of 3 sees "));
    assert_eq!(started.take(3).count(), 3);
    // It goes on without a node, as few as one will do.
    site.cut("n3");
    let again = lines.by_ref().map(Result::unwrap);
    let again = again.filter(|line| line.contains(" of 2 sees "));
    assert_eq!(again.take(2).count(), 2);
    // By `--signal=B:TERM@120` it comes to the batch script, which is the command itself after `exec`.
    kill(site.command_of(&child), Signal::TERM);
    let saved = lines
        .map(Result::unwrap)
        .filter(|line| line.contains("saved by rank"))
        .count();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(
        (saved, child.wait().unwrap().code()),
        (2, Some(130)),
        "{said}"
    );
    assert!(said.contains("sbatch --exclude=n3\n"), "{said}");
    site.expect_nothing_left();
}

/// A shell in an allocation.
struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    fn open(site: &Site) -> Shell {
        Shell::of(site.command("bash", &[]))
    }

    fn of(mut command: Command) -> Shell {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Shell {
            child,
            input,
            lines,
        }
    }

    /// Gives a command of ours. Returns its exit code, and what it printed there.
    fn muster(&mut self, words: &str) -> (i32, String) {
        let muster = program("muster");
        writeln!(
            self.input,
            "{} {words} 2>&1; echo \"code $?\"",
            muster.display()
        )
        .unwrap();
        let mut said = String::new();
        for line in &mut self.lines {
            let line = line.unwrap();
            if let Some(code) = line.strip_prefix("code ") {
                return (code.parse().unwrap(), said);
            }
            said += &(line + "\n");
        }
        panic!("the shell has ended: {said}");
    }

    fn json(&mut self, words: &str) -> Value {
        let (code, said) = self.muster(&format!("{words} -o json"));
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    fn close(self) {
        let Shell {
            mut child, input, ..
        } = self;
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}

/// The nodes of an allocation, lent to another one.
struct Lent {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Lent {
    fn to(site: &Site, host: &str) -> Lent {
        let place = Place {
            job: "4712",
            nodes: 1,
            first: 3,
        };
        let words = ["slurm", "join", host];
        let mut child = site
            .command_in(place, program("muster"), &words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert_eq!(first, format!("1 node lent to allocation {host}"));
        Lent { child, lines }
    }

    fn ends(mut self) {
        let last = self.lines.next().unwrap().unwrap();
        assert!(last.starts_with("nodes of allocation "), "{last}");
        assert!(self.child.wait().unwrap().success());
    }
}

/// Runs a job on two nodes, which may have three.
fn begin(site: &Site) -> (Shell, String) {
    let place = Place {
        job: "4711",
        nodes: 2,
        first: 1,
    };
    let mut shell = Shell::of(site.command_in(place, "bash", &[]));
    let (code, said) = shell.muster("slurm up");
    assert!(code == 0 && said.contains("2 nodes ready"), "{said}");
    let job = format!(
        "run --nnodes 1:3 --scale-up-cooldown 1s --name digits --python {} train.py stay",
        site.python()
    );
    let (code, said) = shell.muster(&job);
    assert_eq!(code, 0, "{said}");
    runs_on(&mut shell, 2);
    let (_, host) = shell.muster("version >/dev/null; echo $SLURM_JOB_ID");
    (shell, host.trim().to_owned())
}

fn runs_on(shell: &mut Shell, nodes: u64) {
    until(|| {
        let job = shell.json("get job digits");
        let status = &job["status"];
        (status["phase"] == "Running" && status["nodesRunning"] == nodes).then_some(())
    })
    .unwrap_or_else(|| panic!("{}", shell.muster("describe job digits").1));
}

fn nodes_of_another_allocation_come_and_go(site: &Site) {
    let (mut shell, host) = begin(site);
    for _ in 0..2 {
        let lent = Lent::to(site, &host);
        runs_on(&mut shell, 3);
        // As before the end of its time.
        kill(site.command_of(&lent.child), Signal::TERM);
        lent.ends();
        runs_on(&mut shell, 2);
        let (_, told) = shell.muster("explain digits");
        assert!(
            told.contains("NodeLeaving") && !told.contains("NodeLost"),
            "{told}"
        );
        let (_, nodes) = shell.muster("nodes -o name");
        assert_eq!(nodes, "node/n1\nnode/n2\n");
    }
    let lent = Lent::to(site, &host);
    runs_on(&mut shell, 3);
    let (code, said) = shell.muster("slurm down");
    assert_eq!(code, 0, "{said}");
    // The coordinator was there.
    lent.ends();
    shell.close();
    site.expect_nothing_left();
}

/// The agent's process of a node.
fn agent_of(site: &Site, node: &str) -> Option<u32> {
    let name = format!("--node-name {node} ");
    let found = processes_of(site.folder()).into_iter();
    found
        .filter(|(_, words)| words.contains("muster-agent --node-name") && words.contains(&name))
        .map(|(pid, _)| pid)
        .find(|pid| lives(u64::from(*pid)))
}

fn an_agent_comes_back_and_a_lost_node_costs_itself_alone(site: &Site) {
    let mut shell = Shell::open(site);
    let (code, said) = shell.muster("slurm up");
    assert!(code == 0 && said.contains("3 nodes ready"), "{said}");
    let (code, said) = shell.muster("slurm up");
    assert!(code == 1 && said.contains("is up already"), "{said}");

    let job = format!(
        "run --nnodes 2:3 --name digits --python {} train.py stay",
        site.python()
    );
    let (code, said) = shell.muster(&job);
    assert_eq!(code, 0, "{said}");
    runs_on(&mut shell, 3);

    let first = agent_of(site, "n2").unwrap();
    kill(u64::from(first), Signal::KILL);
    let next = until(|| agent_of(site, "n2").filter(|pid| *pid != first));
    assert!(next.is_some(), "the agent is started again");

    // The node falls with all that it has.
    site.cut("n3");
    runs_on(&mut shell, 2);
    // Whatever other coordinator the user has named, this is about the one of the allocation.
    writeln!(shell.input, "export MUSTER_SERVER=http://127.0.0.1:9").unwrap();
    let (code, said) = shell.muster("slurm down");
    assert!(code == 0 && said.contains("stopping 1 job"), "{said}");
    let (code, said) = shell.muster("slurm down");
    assert!(code == 0 && said.contains("no cluster is up"), "{said}");
    shell.close();
    site.expect_nothing_left();
}

#[test]
fn a_job_runs_in_an_allocation() {
    a_job_runs_and_nothing_is_left(&Site::stand_in(SCRIPT));
}

#[test]
fn a_stop_in_an_allocation_is_planned() {
    a_stop_before_the_time_is_up_lets_workers_save(&Site::stand_in(SCRIPT));
}

#[test]
fn an_allocation_goes_on_without_a_node() {
    an_agent_comes_back_and_a_lost_node_costs_itself_alone(&Site::stand_in(SCRIPT));
}

#[test]
fn another_allocation_lends_its_nodes() {
    nodes_of_another_allocation_come_and_go(&Site::stand_in(SCRIPT));
}

/// Nobody has told the other allocation that the one with the coordinator has ended.
#[test]
fn lent_nodes_come_back_from_a_dead_allocation() {
    let site = Site::stand_in(SCRIPT);
    let (mut shell, host) = begin(&site);
    let lent = Lent::to(&site, &host);
    runs_on(&mut shell, 3);
    let said = site
        .muster(&["slurm", "down"])
        .env("SLURM_JOB_ID", "4712")
        .output()
        .unwrap();
    let why = text(&said.stderr);
    assert!(
        !said.status.success() && why.contains("are lent to the cluster of allocation 4711"),
        "{why}"
    );
    fs::write(site.folder().join("over-4711"), "").unwrap();
    // The coordinator's step is on the first node: it must not start another one.
    for node in ["n1", "coordinator", "n2"] {
        site.cut(node);
    }
    lent.ends();
    shell.close();
    fs::remove_dir_all(site.folder().join("clusters/4711")).unwrap();
    site.expect_nothing_left();
}

#[test]
fn nodes_are_lent_only_to_a_cluster_that_is_there() {
    let site = Site::stand_in(SCRIPT);
    for (host, code, why) in [
        ("4711", 2, "is this allocation"),
        ("train", 2, "squeue shows it"),
        (
            "4712",
            1,
            "no cluster is up in allocation 4712; `muster run --slurm` or",
        ),
    ] {
        let said = site.muster(&["slurm", "join", host]).output().unwrap();
        let told = text(&said.stderr);
        assert!(
            said.status.code() == Some(code) && told.contains(why),
            "{told}"
        );
    }
}

const ABOUT: &str = "JobId=4711 JobState=RUNNING Requeue=1 BatchFlag=1 ExcNodeList=n9\n";

/// Waits until the script runs in all ranks, and takes a node away.
fn lose_a_node(site: &Site, command: &mut Command) -> Child {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let started = lines
        .map(Result::unwrap)
        .filter(|line| line.contains(" of 3 sees "));
    assert_eq!(started.take(3).count(), 3);
    site.cut("n3");
    child
}

#[test]
fn a_job_with_too_few_nodes_is_requeued_without_the_lost_one() {
    let site = Site::stand_in(SCRIPT);
    fs::write(site.folder().join("job"), ABOUT).unwrap();
    let mut command = run(&site, &["--requeue", "--nnodes", "3", "train.py", "stay"]);
    let output = lose_a_node(&site, &mut command).wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(3) && said.contains("needs 3 nodes, and 2 of 3 are left"),
        "{said}"
    );
    assert!(said.contains("starts again without n3"), "{said}");
    let told = fs::read_to_string(site.folder().join("scontrol.log")).unwrap();
    let told: Vec<&str> = told.lines().skip(2).collect();
    assert_eq!(
        told,
        ["requeue 4711", "update JobId=4711 ExcNodeList=n9,n3"]
    );
    site.expect_nothing_left();
}

/// Without the right to change the job it says what to type. A job that somebody ends stays ended.
#[test]
fn a_stopped_job_is_requeued_unless_somebody_ends_it() {
    let site = Site::stand_in(SCRIPT);
    fs::write(site.folder().join("job"), ABOUT).unwrap();
    fs::write(site.folder().join("denied"), "").unwrap();
    let mut command = run(&site, &["--requeue", "train.py", "stay"]);
    let mut child = lose_a_node(&site, &mut command);
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let again = lines
        .map(Result::unwrap)
        .filter(|line| line.contains(" of 2 sees "));
    assert_eq!(again.take(2).count(), 2);
    kill(site.command_of(&child), Signal::TERM);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.contains(
            "permission denied; while it waits, type: scontrol update JobId=4711 ExcNodeList=n9,n3"
        ),
        "{said}"
    );

    // What succeeds is over, and so is what fails by itself.
    fs::remove_file(site.folder().join("scontrol.log")).unwrap();
    for word in ["", "fail"] {
        output_of(
            &site,
            &["--requeue", "--max-restarts", "0", "train.py", word],
        );
    }
    let told = fs::read_to_string(site.folder().join("scontrol.log")).unwrap();
    assert!(!told.contains("requeue"), "{told}");

    // By now Slurm does not call it running any more.
    fs::write(
        site.folder().join("job"),
        ABOUT.replace("RUNNING", "COMPLETING"),
    )
    .unwrap();
    let mut ended = run(&site, &["--requeue", "train.py", "stay"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(ended.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(" sees ")));
    kill(site.command_of(&ended), Signal::TERM);
    let said = text(&ended.wait_with_output().unwrap().stderr);
    assert!(
        said.contains("is COMPLETING, so somebody ends it"),
        "{said}"
    );
    let told = fs::read_to_string(site.folder().join("scontrol.log")).unwrap();
    assert!(!told.contains("requeue"), "{told}");

    fs::write(site.folder().join("job"), ABOUT).unwrap();
    let task = run(&site, &["--requeue", "train.py"])
        .env("SLURM_ARRAY_JOB_ID", "4711")
        .output()
        .unwrap();
    assert!(
        task.status.code() == Some(2) && text(&task.stderr).contains("not in a job array"),
        "{}",
        text(&task.stderr)
    );

    for (about, why) in [
        (
            ABOUT.replace("BatchFlag=1", "BatchFlag=0"),
            "only batch jobs",
        ),
        (ABOUT.replace("Requeue=1", "Requeue=0"), "#SBATCH --requeue"),
    ] {
        fs::write(site.folder().join("job"), about).unwrap();
        let (output, said) = output_of(&site, &["--requeue", "train.py"]);
        assert!(
            output.status.code() == Some(2) && said.contains(why),
            "{said}"
        );
    }
    site.expect_nothing_left();
}

#[test]
fn where_no_cluster_can_be_it_says_why() {
    let site = Site::stand_in(SCRIPT);
    let outside = site
        .muster(&["slurm", "up"])
        .env_remove("SLURM_JOB_ID")
        .output()
        .unwrap();
    let said = text(&outside.stderr);
    assert!(
        outside.status.code() == Some(2) && said.contains("sbatch script or within salloc"),
        "{said}"
    );
    // Slurm itself is not there, or refuses.
    fs::write(
        site.folder().join("bin/srun"),
        "#!/bin/sh\necho no nodes are there >&2\nexit 1\n",
    )
    .unwrap();
    let (output, said) = output_of(&site, &["train.py"]);
    assert!(
        output.status.code() == Some(1)
            && said.contains("the step of the coordinator has ended")
            && said.contains("no nodes are there"),
        "{said}"
    );
    assert!(processes_of(site.folder()).is_empty());
}

/// A job that is requeued keeps its number, and nobody has ended its cluster.
#[test]
fn a_requeued_job_starts_anew() {
    let site = Site::stand_in(SCRIPT);
    let old = site.folder().join("clusters/4711");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&old)
        .unwrap();
    let record =
        r#"{"job":"4711","server":"https://127.0.0.1:9","slurm":"","restarts":"1","steps":[]}"#;
    fs::write(old.join("cluster.json"), record).unwrap();
    let again = |count: &str| {
        let mut command = run(&site, &["train.py"]);
        let output = command.env("SLURM_RESTART_COUNT", count).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = again("1");
    assert!(code == Some(1) && said.contains("is up already"), "{said}");
    let (code, said) = again("2");
    assert_eq!(code, Some(0), "{said}");
    site.expect_nothing_left();
}

#[test]
fn one_command_serves_the_whole_allocation() {
    let site = Site::stand_in(SCRIPT);
    let mut command = run(&site, &["train.py"]);
    let output = command.env("SLURM_STEP_NUM_TASKS", "3").output().unwrap();
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("leave out the srun"),
        "{said}"
    );
    // A directory that others can write decides nothing.
    let dir = site.folder().join("clusters/4711");
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let (output, said) = output_of(&site, &["train.py"]);
    assert!(
        output.status.code() == Some(1) && said.contains("only you can read and write"),
        "{said}"
    );
}

fn slurm_starts_it_again_without_the_lost_node(site: &Site) {
    let output = site.folder().join("batch.out");
    let script = format!(
        "#!/bin/bash\n\
         exec {} run --slurm --requeue --nnodes 2 --python {} train.py ${{SLURM_RESTART_COUNT-stay}}\n",
        program("muster").display(),
        site.python()
    );
    let job = site.sbatch(&["--nodes=2", "--requeue", "--no-kill"], &script);
    let said = || fs::read_to_string(&output).unwrap_or_default();
    let has = |what: &str| until(|| said().contains(what).then_some(()));
    assert!(has("rank 1 of 2 sees ").is_some(), "{}", said());
    site.cut("n2");
    assert!(has("starts again without n2").is_some(), "{}", said());
    let about = || site.scontrol(&["--oneliner", "show", "job", &job]);
    let is_pending =
        || (about().contains("JobState=PENDING") && !about().contains("COMPLETING")).then_some(());
    assert!(until(is_pending).is_some(), "{}", about());
    assert!(about().contains("ExcNodeList=n2"), "{}", about());
    // Slurm waits two minutes before it starts a job again.
    site.scontrol(&["update", &format!("JobId={job}"), "StartTime=now"]);
    let is_over = || about().contains("JobState=COMPLETED").then_some(());
    assert!(until(is_over).is_some(), "{} {}", about(), said());
    assert!(about().contains(" NodeList=n[1,3]"), "{}", about());
    site.expect_nothing_left();
}

#[test]
#[ignore = "needs slurmctld, slurmd and munged, and to be root: make slurm"]
fn slurm_itself() {
    let site = Site::real(SCRIPT);
    a_job_runs_and_nothing_is_left(&site);
    a_stop_before_the_time_is_up_lets_workers_save(&site);
    an_agent_comes_back_and_a_lost_node_costs_itself_alone(&site);
    nodes_of_another_allocation_come_and_go(&site);
    slurm_starts_it_again_without_the_lost_node(&site);
}
