//! Members of an MPI job with real processes, and without MPI: one runner lends, another launches. The
//! launcher's script calls the program for remote starts as `mpirun` does.
#![allow(clippy::unwrap_used)]

mod rig;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use muster_runner::wire::{
    Exit, HostSpec, Lane, LauncherSpec, LenderSpec, MpiSpec, Order, StartSpec, Status,
};
use rig::{Client, Living, Rig};
use rustix::process::Signal;

const KEY: &str = "00112233445566778899aabbccddeeff";

/// A member whose process is started in the direct lane.
fn member(rig: &Rig, command: &[&str], part: MpiSpec) -> StartSpec {
    let mut spec = rig.program("/bin/sh", &[], 1);
    let dir = rig.dir.to_str().unwrap();
    let path = format!("{dir}/bin:{}", spec.env["PATH"]);
    spec.env.extend([
        ("MUSTER_RUN_DIR".to_owned(), dir.to_owned()),
        ("PATH".to_owned(), path),
        ("TORCHELASTIC_USE_AGENT_STORE".to_owned(), "True".to_owned()),
    ]);
    StartSpec {
        order: Some(Order {
            lane: Lane::Direct,
            options: Vec::new(),
            argv: Vec::new(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            run_id: "r".into(),
            peer_lost: Vec::new(),
            lacks: Vec::new(),
            inspect: false,
            collectives: false,
        }),
        mpi: Some(part),
        ..spec
    }
}

/// Two runners of one job.
struct Job {
    at: String,
    lender: Rig,
    lends: Client,
    launcher: Rig,
    launches: Client,
}

impl Job {
    fn new() -> Job {
        // The port stays free: nobody else binds a port that was just given up, unless it asks for it.
        let at = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let (mut lender, mut launcher) = (Rig::below("lender"), Rig::below("launcher"));
        (lender.hold.node, launcher.hold.generation) = ("node-b".into(), 4);
        let (lends, launches) = (lender.ready(), launcher.ready());
        Job {
            at: at.to_string(),
            lender,
            lends,
            launcher,
            launches,
        }
    }

    fn lend(&mut self) {
        let part = MpiSpec::Lender(LenderSpec {
            own_name: Some("pi-worker-0".into()),
            listen: self.at.clone(),
            key: KEY.into(),
        });
        let spec = member(&self.lender, &[], part);
        self.lends.start(spec);
    }

    /// Starts the launcher with a script that may use `DIR` of the lender.
    fn launch(&mut self, script: &str) {
        self.launch_program(&["/bin/sh", "-c", script]);
    }

    fn launch_program(&mut self, command: &[&str]) {
        let host = HostSpec {
            name: "pi-worker-0".into(),
            at: self.at.clone(),
            key: KEY.into(),
        };
        let files = [
            ("hostfile", "pi-worker-0 slots=2\n"),
            ("discover_hosts.sh", "#!/bin/sh\necho pi-worker-0:2\n"),
        ];
        let part = MpiSpec::Launcher(LauncherSpec {
            own_name: Some("pi-launcher-0".into()),
            own_address: Some("127.0.0.9".into()),
            hosts: vec![host],
            files: files.map(|(name, text)| (name.into(), text.into())).into(),
        });
        let spec = member(&self.launcher, command, part);
        self.launches.start(spec);
    }

    /// The end of the launcher's process, and what it has written.
    fn launched(&mut self) -> (Exit, String) {
        let exit = end_of(&mut self.launches);
        (exit, said(&self.launcher))
    }
}

/// A program of this name in the launcher's directory.
fn mpirun(job: &Job, script: &str) -> Vec<String> {
    let path = job.launcher.dir.join("mpirun");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    vec![path.to_str().unwrap().to_owned(), "-np".into(), "2".into()]
}

/// Why the launcher's process failed, as its runner says it.
fn why(job: &mut Job, script: &str) -> String {
    let command = mpirun(job, script);
    job.lend();
    job.launch_program(&command.iter().map(String::as_str).collect::<Vec<_>>());
    end_of(&mut job.launches);
    let status = job.launches.status();
    let rank = &status.ranks[0];
    let said = rank.first_error.clone().or(rank.last_output.clone());
    said.unwrap_or_default()
}

#[test]
fn an_mpirun_that_refuses_its_own_words_has_started_no_rank() {
    let mut job = Job::new();
    let refused = why(
        &mut job,
        "echo 'mpirun: Error: unknown option -bind-to' >&2; exit 213",
    );
    assert_eq!(
        refused,
        "no rank began: mpirun: Error: unknown option -bind-to"
    );
    // It has asked a host, and the host has started nothing that became a rank.
    let mut job = Job::new();
    let asked = why(
        &mut job,
        "muster-rsh pi-worker-0 true; echo 'mpirun: Error: no daemon' >&2; exit 213",
    );
    assert_eq!(asked, "mpirun: Error: no daemon");
}

/// How the only process of a member ended.
fn end_of(client: &mut Client) -> Exit {
    client.until_dead().ranks[0].exit.unwrap()
}

/// The messages of a member's process, without the times of their lines.
fn said(rig: &Rig) -> String {
    let log = rig.log(&muster_runner::record::rank_log(0));
    let texts = log
        .lines()
        .map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default());
    texts.collect::<Vec<_>>().join("\n")
}

fn waits_for(file: &Path) {
    let until = std::time::Instant::now() + rig::PATIENCE;
    while !file.exists() {
        assert!(std::time::Instant::now() < until, "{}", file.display());
        std::thread::yield_now();
    }
}

fn runs(client: &mut Client) -> Status {
    client.until(|status| status.ranks.iter().any(|rank| rank.pid > 0))
}

const CODE: fn(i32) -> Exit = |code| Exit::Code { code };
const KILLED: Exit = Exit::Signal {
    signal: 9,
    core: false,
};

#[test]
fn a_command_runs_in_the_lenders_place_with_all_three_streams_and_its_code() {
    let mut job = Job::new();
    job.launch(
        r#"cat /etc/mpi/hostfile
        echo typed | muster-rsh pi-worker-0 'read word; echo "$word here"; echo "to errors" >&2; exit 7'
        echo "code $?"
        echo "launcher on $(hostname), lender on $(ssh -x -o A=b worker-0 hostname)"
        echo "resolved: $(getent hosts $(hostname)) $(ssh worker-0 'getent hosts $(hostname)')"
        /etc/mpi/discover_hosts.sh; /etc/edl/discover_hosts.sh
        ssh -n pi-worker-0.pi.svc 'echo "dir $(pwd) $TORCHELASTIC_USE_AGENT_STORE$RANK"; cat; kill -9 $$'
        echo "code $?"
        head -c 3000000 /dev/zero | muster-rsh pi-worker-0 'cat | wc -c'
        muster-rsh pi-worker-0 'head -c 3000000 /dev/zero' | wc -c
        head -c 20000000 /dev/zero | muster-rsh pi-worker-0 'od -An -v -tx1' | wc -c
        muster-rsh nowhere true; echo "code $?"
        muster-rsh pi-worker-0; echo "code $?""#,
    );
    // The launcher was started first, and waits.
    runs(&mut job.launches);
    job.lend();
    let (exit, said) = job.launched();
    let dir = job.lender.dir.display();
    let own = job.at.split(':').next().unwrap();
    let expected = format!(
        "pi-worker-0 slots=2\ntyped here\nto errors\ncode 7\nlauncher on pi-launcher-0, lender on pi-worker-0\n\
         resolved: 127.0.0.9       pi-launcher-0 {own}       pi-worker-0\npi-worker-0:2\npi-worker-0:2\ndir {dir} \ncode 137\n\
         3000000\n3000000\n61250000\nmuster-rsh: \"nowhere\" is no host of this job: pi-worker-0\ncode 255\n\
         muster-rsh: there is no command to run; a shell for people is not offered\ncode 255"
    );
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    // Lines of the two streams may change places.
    assert_eq!(sorted(&said), sorted(&expected), "{said}");
    let machine = std::fs::read_to_string("/etc/hosts").unwrap();
    assert!(!machine.contains("pi-worker-0"), "{machine}");
    assert_eq!(exit, CODE(0));
}

#[test]
fn a_signal_reaches_the_command_and_a_launcher_that_is_gone_ends_it() {
    let mut job = Job::new();
    job.lend();
    job.launch(
        r#"muster-rsh worker-0 'trap "exit 3" TERM; touch ready; while :; do sleep 0.05; done' & pid=$!
        muster-rsh worker-0 'while [ ! -e ready ]; do sleep 0.05; done'
        kill -TERM $pid; wait $pid; echo "code $?"
        muster-rsh worker-0 'echo $$ > stays; mv stays stayed; exec sleep 1000'"#,
    );
    let stayed = job.lender.dir.join("stayed");
    waits_for(&stayed);
    let log = said(&job.launcher);
    assert!(log.ends_with("code 3"), "{log}");
    let command = Living::of(job.lender.pid_in("stayed"));
    let launcher = runs(&mut job.launches).ranks[0].pid;
    Living::of(launcher).kill();
    assert_eq!(end_of(&mut job.launches), KILLED);
    command.gone();
    let lender = runs(&mut job.lends);
    assert_eq!(
        lender.ranks[0].exit,
        None,
        "the lender goes on: {}",
        said(&job.lender)
    );
}

/// What a daemon of MPI does, as far as a lender sees it: it gives a rank its number and reaps it.
const DAEMON: &str =
    "cd DIR; OMPI_COMM_WORLD_RANK=3 sh -c 'echo $$ > rank; mv rank rank.pid; exec sleep 1000'";

/// Whether the lender has seen a rank. It then holds a descriptor of its process.
fn watches(lender: i32) -> bool {
    let open = std::fs::read_dir(format!("/proc/{lender}/fd")).unwrap();
    let links = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links
        .into_iter()
        .any(|link| link.to_string_lossy().contains("pidfd"))
}

/// A job whose launcher believes that all is well, whatever becomes of its daemon.
fn with_a_rank(daemon: &str) -> (Job, Living) {
    let mut job = Job::new();
    job.lend();
    let daemon = daemon.replace("DIR", job.lender.dir.to_str().unwrap());
    job.launch(&format!(
        "muster-rsh worker-0 \"$(cat <<'END'\n{daemon}\nEND\n)\"; exit 0"
    ));
    waits_for(&job.lender.dir.join("rank.pid"));
    let rank = Living::of(job.lender.pid_in("rank.pid"));
    let lender = runs(&mut job.lends).ranks[0].pid;
    let until = std::time::Instant::now() + rig::PATIENCE;
    while !watches(lender) {
        assert!(std::time::Instant::now() < until, "no rank is watched");
        std::thread::yield_now();
    }
    (job, rank)
}

#[test]
fn a_rank_that_was_killed_is_the_end_of_its_lender_although_the_launcher_ends_well() {
    let (mut job, rank) = with_a_rank(&format!("{DAEMON}; echo the daemon is content; exit 0"));
    rank.kill();
    assert_eq!(end_of(&mut job.lends), KILLED);
    let status = job.lends.until_dead();
    let error = status.ranks[0].first_error.as_deref().unwrap_or_default();
    assert!(
        error.starts_with("muster-lend: Open MPI rank 3 (pid "),
        "{error}"
    );
    assert_eq!(end_of(&mut job.launches), CODE(0));
}

#[test]
fn a_daemon_that_was_killed_is_the_end_of_its_lender() {
    let (mut job, rank) = with_a_rank(&format!("echo $$ > daemon.pid; {DAEMON}; exit 0"));
    Living::of(job.lender.pid_in("daemon.pid")).kill();
    assert_eq!(end_of(&mut job.lends), KILLED);
    rank.gone();
    assert_eq!(end_of(&mut job.launches), CODE(0));
}

/// The program for remote starts below a launcher: the first of its children.
fn remote_start(launcher: &mut Client) -> Living {
    let launcher = runs(launcher).ranks[0].pid;
    let children = format!("/proc/{launcher}/task/{launcher}/children");
    let children = std::fs::read_to_string(children).unwrap();
    Living::of(children.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_connection_that_breaks_above_a_rank_is_the_end_of_its_lender_although_the_launcher_ends_well()
{
    // When its connection is gone, this daemon ends its rank and itself in good order.
    let daemon = "cd DIR; trap 'kill -9 $!; wait; exit 0' HUP
        OMPI_COMM_WORLD_RANK=3 sh -c 'echo $$ > rank; mv rank rank.pid; exec sleep 1000' & wait";
    let (mut job, rank) = with_a_rank(daemon);
    remote_start(&mut job.launches).kill();
    let hung_up = Exit::Signal {
        signal: Signal::HUP.as_raw(),
        core: false,
    };
    assert_eq!(end_of(&mut job.lends), hung_up, "{}", said(&job.lender));
    rank.gone();
    let status = job.lends.until_dead();
    let error = status.ranks[0].first_error.as_deref().unwrap_or_default();
    assert!(
        error.starts_with(
            "muster-lend: the launcher's connection broke above Open MPI rank 3 (pid "
        ),
        "{error}"
    );
    assert_eq!(end_of(&mut job.launches), CODE(0));
}

#[test]
fn a_connection_that_breaks_after_the_last_rank_has_ended_well_ends_no_lender() {
    // Some launchers end before their daemons.
    let daemon = "cd DIR; OMPI_COMM_WORLD_RANK=3 sh -c 'echo $$ > rank; mv rank rank.pid; while [ ! -e end ]; do sleep 0.02; done'
        touch ended; exec sleep 1000";
    let (mut job, rank) = with_a_rank(daemon);
    std::fs::write(job.lender.dir.join("end"), "").unwrap();
    waits_for(&job.lender.dir.join("ended"));
    rank.gone();
    remote_start(&mut job.launches).kill();
    assert_eq!(end_of(&mut job.launches), CODE(0));
    let lender = runs(&mut job.lends);
    assert_eq!(lender.ranks[0].exit, None, "{}", said(&job.lender));
    job.lends.stop(std::time::Duration::from_secs(100));
    let stopped = Exit::Signal {
        signal: Signal::TERM.as_raw(),
        core: false,
    };
    assert_eq!(end_of(&mut job.lends), stopped, "{}", said(&job.lender));
}

#[test]
fn a_stop_tells_a_rank_whose_launcher_is_gone_once() {
    // The daemon has left its rank behind, with all three streams.
    let daemon = "cd DIR; OMPI_COMM_WORLD_RANK=3 setsid sh -c 'trap \"echo told >> told\" TERM
        echo $$ > rank; mv rank rank.pid; while [ ! -e told ]; do sleep 0.02; done' >/dev/null 2>&1 </dev/null & exit 0";
    let (mut job, rank) = with_a_rank(daemon);
    assert_eq!(end_of(&mut job.launches), CODE(0));
    job.lends.stop(std::time::Duration::from_secs(100));
    rank.gone();
    end_of(&mut job.lends);
    let told = std::fs::read_to_string(job.lender.dir.join("told")).unwrap();
    assert_eq!(told, "told\n");
}

#[test]
fn a_rank_that_ends_well_and_a_script_that_fails_end_no_lender() {
    let mut job = Job::new();
    job.lend();
    job.launch(
        r#"muster-rsh worker-0 'OMPI_COMM_WORLD_RANK=0 sh -c "sleep 0.2; exit 0"; exit 5'; echo "code $?"
        muster-rsh worker-0 'echo still there'"#,
    );
    let (exit, said) = job.launched();
    assert_eq!((exit, said.as_str()), (CODE(0), "code 5\nstill there"));
}

#[test]
fn a_lender_that_is_gone_is_code_255_and_a_stop_ends_it_at_once() {
    let (mut job, _rank) = with_a_rank(&DAEMON.replace("sleep 1000", "sleep 1000; exit 1"));
    let lender = runs(&mut job.lends).ranks[0].pid;
    Living::of(lender).kill();
    assert_eq!(
        end_of(&mut job.launches),
        CODE(0),
        "{}",
        said(&job.launcher)
    );
    assert!(
        said(&job.launcher).contains("muster-rsh: pi-worker-0 is gone: "),
        "{}",
        said(&job.launcher)
    );

    let mut idle = Job::new();
    idle.lend();
    runs(&mut idle.lends);
    idle.lends.stop(std::time::Duration::from_secs(100));
    let end = Exit::Signal {
        signal: Signal::TERM.as_raw(),
        core: false,
    };
    assert_eq!(end_of(&mut idle.lends), end);
}

#[test]
fn whoever_has_not_the_key_gets_nothing_run() {
    let mut job = Job::new();
    job.lend();
    job.launch(
        r#"sed 's/0011/ffff/' "$MUSTER_RUN_DIR/mpi.json" > other; mkdir stranger; mv other stranger/mpi.json
        MUSTER_RUN_DIR=$PWD/stranger muster-rsh pi-worker-0 'touch it'; echo "code $?"
        muster-rsh worker-0 'ls it'; echo "code $?""#,
    );
    let (exit, log) = job.launched();
    assert_eq!(exit, CODE(0));
    assert!(
        log.contains("pi-worker-0 is gone") && log.contains("code 255"),
        "{log}"
    );
    let codes: Vec<&str> = log.lines().filter(|l| l.starts_with("code ")).collect();
    assert_eq!(
        codes,
        ["code 255", "code 2"],
        "the file is not there: {log}"
    );
    assert!(!job.lender.dir.join("it").exists());
    assert!(
        said(&job.lender).contains("a connection is refused: the other end does not have the key")
    );

    // Something that speaks no such protocol is not answered, and harms nobody.
    let mut stranger = TcpStream::connect(&job.at).unwrap();
    stranger.write_all(&[b'x'; 200]).unwrap();
    let mut answer = Vec::new();
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.len() <= 45, "{answer:?}");
    assert_eq!(runs(&mut job.lends).ranks[0].exit, None);
}
