use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use super::*;

/// Processes that are not there.
#[derive(Default)]
struct Made {
    all: Vec<Stat>,
    kinds: BTreeMap<i32, Kind>,
    dispositions: BTreeMap<i32, Dispositions>,
    streams: BTreeMap<(i32, u8), String>,
    words: BTreeMap<i32, Vec<String>>,
}

impl Look for Made {
    fn kind(&self, pid: i32) -> Kind {
        *self.kinds.get(&pid).unwrap_or(&Kind::Program)
    }

    fn dispositions(&self, pid: i32) -> Dispositions {
        self.dispositions.get(&pid).copied().unwrap_or_default()
    }

    fn words(&self, pid: i32) -> Vec<String> {
        self.words.get(&pid).cloned().unwrap_or_default()
    }

    fn stream(&self, pid: i32, fd: u8) -> Option<String> {
        self.streams.get(&(pid, fd)).cloned()
    }
}

fn bits(signals: &[Signal]) -> u64 {
    signals.iter().map(|s| 1 << (s.as_raw() - 1)).sum()
}

impl Made {
    fn process(mut self, pid: i32, ppid: i32, kind: Kind) -> Self {
        self.all.push(Stat {
            pid,
            ppid,
            state: b'S',
            session: 10,
            threads: 1,
            start_time: 1,
        });
        self.kinds.insert(pid, kind);
        self
    }

    fn in_session(mut self, session: i32) -> Self {
        self.all.last_mut().expect("one was added").session = session;
        self
    }

    fn catches(mut self, pid: i32, signals: &[Signal]) -> Self {
        self.dispositions.entry(pid).or_default().caught = bits(signals);
        self
    }

    fn ignores(mut self, pid: i32, signals: &[Signal]) -> Self {
        self.dispositions.entry(pid).or_default().ignored = bits(signals);
        self
    }

    fn pipe(mut self, from: (i32, u8), to: i32) -> Self {
        let name = format!("pipe:[{}]", from.0);
        self.streams.insert(from, name.clone());
        self.streams.insert((to, 0), name);
        self
    }

    fn told(&self, pid: i32) -> Vec<i32> {
        let stat = *self.all.iter().find(|s| s.pid == pid).expect("it is there");
        let told = addressees(stat, &self.all, self, DEPTH);
        told.iter().map(|stat| stat.pid).collect()
    }

    fn left(&self, group: &Group) -> (Vec<i32>, bool) {
        let left = left_of(group, &self.all, self);
        let mut roots: Vec<i32> = left.roots.iter().map(|stat| stat.pid).collect();
        roots.sort_unstable();
        (roots, left.may_save)
    }
}

/// `run.sh` (10), which runs a program (11) with a loader's worker (12).
fn script() -> Made {
    Made::default()
        .process(10, 1, Kind::Shell)
        .process(11, 10, Kind::Program)
        .process(12, 11, Kind::Program)
}

#[test]
fn a_program_hears_it_alone() {
    assert_eq!(script().told(11), [11]);
}

#[test]
fn a_shell_without_a_trap_dies_of_it_before_its_command_hears_of_it() {
    assert_eq!(script().told(10), [10]);
}

#[test]
fn a_shell_with_a_trap_hears_it_with_its_foreground_command() {
    let script = script().catches(10, &[Signal::TERM]);
    assert_eq!(script.told(10), [10, 11]);
    let ignored = self::script().ignores(10, &[Signal::TERM]);
    assert_eq!(ignored.told(10), [10, 11]);
    let nested = script
        .process(9, 1, Kind::Shell)
        .catches(9, &[Signal::TERM]);
    let mut nested = nested;
    nested.all[0].ppid = 9;
    nested.dispositions.insert(
        10,
        Dispositions {
            caught: bits(&[Signal::TERM]),
            ignored: 0,
            runs: false,
        },
    );
    assert_eq!(nested.told(9), [9, 10, 11]);
}

#[test]
fn what_a_shell_runs_in_the_background_is_up_to_its_trap() {
    let background = [Signal::INT, Signal::QUIT];
    let script = script()
        .catches(10, &[Signal::TERM])
        .ignores(11, &background);
    assert_eq!(script.told(10), [10]);
    // Whoever started the shell ignored them already, so they say nothing.
    let all = self::script()
        .ignores(10, &[Signal::TERM, Signal::INT, Signal::QUIT])
        .ignores(11, &background);
    assert_eq!(all.told(10), [10, 11]);
}

/// bash catches SIGINT for a moment before each of its commands, some hundred times a second here.
#[test]
fn a_shell_in_the_background_is_taken_for_that_at_every_moment() {
    let script = "bash -c 'while :; do /bin/true; done' & echo $!; wait";
    // Whoever started the tests may ignore these signals.
    let mut shell = Command::new("env")
        .args(["--default-signal=INT,QUIT", "bash", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(shell.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let pid: i32 = line.trim().parse().unwrap();
    // Until then it is a copy of its parent.
    while words(pid)
        .get(2)
        .is_none_or(|script| !script.starts_with("while"))
    {
        std::thread::yield_now();
    }
    let ignores = |pid| {
        let own = System.settled(pid);
        own.ignores(Signal::INT) && own.ignores(Signal::QUIT)
    };
    let always = (0..20_000).all(|_| ignores(pid));
    let shell_itself = ignores(shell.id() as i32);
    procfs::send(&Stat::of(pid).unwrap(), Signal::KILL);
    shell.wait().unwrap();
    assert!(always);
    assert!(!shell_itself, "it catches SIGINT while it waits");
}

#[test]
fn who_reads_what_the_command_prints_ends_with_it() {
    let script = script()
        .process(13, 10, Kind::Program)
        .catches(10, &[Signal::TERM])
        .pipe((11, 1), 13);
    assert_eq!(script.told(10), [10, 11]);
    // `exec > >(tee log)`: the shell itself prints into it.
    let script = self::script()
        .process(13, 10, Kind::Program)
        .catches(10, &[Signal::TERM])
        .pipe((10, 1), 13);
    assert_eq!(script.told(10), [10, 11]);
}

#[test]
fn a_relay_would_tell_a_whole_group_so_its_command_is_told_in_its_place() {
    let mut made = script();
    made.kinds.insert(10, Kind::Relay);
    assert_eq!(made.told(10), [11]);
    let alone = Made::default().process(10, 1, Kind::Relay);
    assert_eq!(alone.told(10), [10]);
}

/// A runner (1), a launcher (2), a shim (3) of rank 10, which has ended, and a shim (4) of rank 20.
fn group(rank_lives: bool) -> Group {
    Group {
        adopters: [1, 3, 4].into(),
        own: [2, 3, 4]
            .into_iter()
            .chain(rank_lives.then_some(20))
            .collect(),
        sessions: rank_lives.then(|| [10].into()),
        commands: Some([vec!["python".to_owned(), "train.py".to_owned()]].into()),
    }
}

fn processes() -> Made {
    Made::default()
        .process(2, 1, Kind::Program)
        .process(3, 2, Kind::Program)
        .process(4, 2, Kind::Program)
        .process(20, 4, Kind::Program)
        .in_session(20)
        .process(21, 20, Kind::Program)
        .in_session(20)
}

#[test]
fn what_has_lost_its_rank_is_left_behind_and_its_children_hear_of_it_later() {
    let made = processes()
        .process(11, 3, Kind::Program)
        .process(12, 11, Kind::Program);
    assert_eq!(made.left(&group(true)), (vec![11], true));
    assert_eq!(processes().left(&group(true)), (vec![], false));
}

#[test]
fn a_daemon_of_its_own_session_is_left_alone_while_a_rank_lives() {
    let made = processes().process(30, 1, Kind::Program).in_session(30);
    assert_eq!(made.left(&group(true)), (vec![], false));
    assert_eq!(made.left(&group(false)), (vec![20, 30], true));
}

#[test]
fn who_ignores_it_passes_nothing_on_and_is_not_waited_for() {
    let made = processes()
        .process(11, 3, Kind::Program)
        .ignores(11, &[Signal::TERM])
        .process(12, 11, Kind::Program)
        .ignores(12, &[Signal::TERM]);
    assert_eq!(made.left(&group(true)), (vec![11, 12], false));
    let hears = processes()
        .process(11, 3, Kind::Program)
        .ignores(11, &[Signal::TERM])
        .process(12, 11, Kind::Program)
        .process(13, 12, Kind::Program);
    assert_eq!(hears.left(&group(true)), (vec![11, 12], true));
}

#[test]
fn helpers_of_a_rank_are_told_and_not_waited_for() {
    for (words, waited) in [
        (&["python", "train.py"][..], false),
        (
            &[
                "python",
                "-c",
                "from multiprocessing.spawn import spawn_main; spawn_main()",
            ],
            false,
        ),
        (&["python", "export.py"], true),
    ] {
        let mut made = processes().process(11, 3, Kind::Program);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        made.words.insert(11, words);
        assert_eq!(made.left(&group(true)), (vec![11], waited));
        let ended_by_it = Group {
            commands: None,
            ..group(true)
        };
        assert_eq!(made.left(&ended_by_it), (vec![11], true));
    }
}

#[test]
fn a_name_has_the_script_and_no_secret() {
    let name = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        name_of(&words)
    };
    for (words, shown) in [
        (
            &[
                "/opt/bin/python3.11",
                "-u",
                "-X",
                "dev",
                "/w/train.py",
                "--token=s",
            ][..],
            "python3.11 train.py",
        ),
        (
            &["python", "-m", "pkg.train", "--key", "s"],
            "python -m pkg.train",
        ),
        (&["python", "-c", "password = 's'"], "python -c"),
        (&["bash", "-c", "curl -H s"], "bash -c"),
        (&["bash", "-lc", "curl -H s"], "bash -lc"),
        (&["sh", "-e", "-c", "curl -H s"], "sh -c"),
        (&["python3", "-uc", "password = 's'"], "python3 -uc"),
        (&["perl", "-e", "print 's'"], "perl -e"),
        (&["ruby", "-ne", "print 's'"], "ruby -ne"),
        (&["node", "--eval", "'s'"], "node --eval"),
        (&["bash", "-e", "run.sh", "s"], "bash run.sh"),
        (&["/bin/sh", "./run.sh", "s"], "sh run.sh"),
        (&["/usr/bin/rsync", "s:/x", "/y"], "rsync"),
        (&["python3"], "python3"),
        (&["ray::IDLE s"], "ray::IDLE"),
        (&[], ""),
    ] {
        assert_eq!(name(words), shown);
    }
    assert!(super::name(std::process::id() as i32).starts_with("muster"));
}

#[test]
fn kinds_are_known_by_their_programs() {
    assert_eq!(kind(std::process::id() as i32), Kind::Program);
    let mut shell = std::process::Command::new("/bin/sh")
        .args(["-c", "read x; exit"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("there is a shell");
    let pid = shell.id() as i32;
    // Until the child has executed it, it is this program.
    while kind(pid) != Kind::Shell {
        assert!(shell.try_wait().expect("it can be asked").is_none());
        std::thread::yield_now();
    }
    drop(shell.stdin.take());
    shell.wait().expect("it ends");
}
