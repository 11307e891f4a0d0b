//! The shell against real processes in the place of systemd's programs.

use std::{
    os::unix::fs::PermissionsExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::*;
use crate::{Refusal, Setting, Wanted, install};

/// Keeps what it was told to do. A start runs a process with the unit's settings, as systemd would.
const SYSTEMCTL: &str = r#"
echo "systemctl $*" >> "$ROOT/log"
case "$1" in
show) cat "$ROOT/shown" ;;
start | restart)
  [ ! -e "$ROOT/broken" ] || { echo "Job for $2 failed." >&2; exit 1; }
  [ ! -e "$ROOT/pid" ] || kill "$(cat "$ROOT/pid")"
  settings=$(cat "$ROOT/etc/muster/agent.env" 2>/dev/null)
  env -i $settings "$ROOT/bin/idle" 1000 > /dev/null 2>&1 &
  echo $! > "$ROOT/pid"
  printf 'LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nKillMode=%s\nMainPID=%s\n' "$(cat "$ROOT/kill-mode")" $! > "$ROOT/shown" ;;
esac
"#;

const SYSUSERS: &str = r#"
echo "systemd-sysusers $*" >> "$ROOT/log"
echo "muster:x:$ID:$ID::/:/bin/sh" >> "$ROOT/etc/passwd"
"#;

const GETENT: &str = r#"grep "^$2:" "$ROOT/etc/passwd""#;

const JOURNALCTL: &str = "echo 'muster-agent: --slots: is 99, at most 32 are allowed'";

/// The daemon: it joins with a token, and refuses one setting.
const AGENT: &str = r#"
case "$1" in
join) echo "$(id -u) $* $(cat)" >> "$ROOT/log"; echo joined ;;
--check)
  echo "check $* MUSTER_SLOTS=$MUSTER_SLOTS" >> "$ROOT/log"
  [ "$MUSTER_SLOTS" != 99 ] || { echo "--slots: is 99" >&2; exit 2; } ;;
esac
"#;

struct Rig {
    folder: tempfile::TempDir,
    machine: Machine,
    _turn: MutexGuard<'static, ()>,
}

/// One at a time: a program that is written while another test forks is busy for a moment in the child.
static TURN: Mutex<()> = Mutex::new(());

/// A user that is not root.
fn id() -> u32 {
    match rustix::process::geteuid().as_raw() {
        0 => 4242,
        own => own,
    }
}

impl Rig {
    fn new(is_live: bool) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        // The service's user comes here, too.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        fs::write(root.join("shown"), "LoadState=not-found\nMainPID=0\n").unwrap();
        fs::write(root.join("kill-mode"), "process").unwrap();
        fs::write(root.join("log"), "").unwrap();
        fs::set_permissions(root.join("log"), fs::Permissions::from_mode(0o666)).unwrap();
        let sleep = env::split_paths(&env::var_os("PATH").unwrap())
            .map(|folder| folder.join("sleep"))
            .find(|sleep| sleep.exists());
        fs::copy(sleep.unwrap(), root.join("bin/idle")).unwrap();
        for (name, text) in [
            ("systemctl", SYSTEMCTL),
            ("systemd-sysusers", SYSUSERS),
            ("getent", GETENT),
            ("journalctl", JOURNALCTL),
            ("muster-agent", AGENT),
        ] {
            let text = format!("#!/bin/sh\nROOT={}\nID={}\n{text}", root.display(), id());
            let path = root.join("bin").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut search = OsString::from(root.join("bin"));
        search.push(":");
        search.push(env::var_os("PATH").unwrap());
        let machine = Machine {
            program: root.join("bin/muster-agent"),
            root,
            is_live,
            search: Some(search),
        };
        Self {
            folder,
            machine,
            _turn: turn,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn wanted(slots: Option<&str>) -> Wanted {
        let setting = |value: &str| Setting {
            name: "MUSTER_SLOTS".into(),
            value: value.into(),
        };
        Wanted {
            daemon: Daemon::Agent,
            program: "/bin/muster-agent".into(),
            run_as: None,
            settings: slots.map(setting).into_iter().collect(),
            enrolment: ["join", "https://a:7070"].map(String::from).to_vec(),
        }
    }

    fn plan(&self, wanted: &Wanted) -> Result<Vec<Step>, Refusal> {
        let is_enrolled = |_: &Path| self.logged().contains("https://a:7070");
        let found = self.machine.look(Daemon::Agent, None, is_enrolled);
        install(wanted, &found.unwrap())
    }

    fn install(&self, slots: Option<&str>) -> Result<(), Failure> {
        let steps = self.plan(&Self::wanted(slots)).unwrap();
        let mut steps = steps.iter();
        steps.try_for_each(|step| self.machine.take(Daemon::Agent, step, Some("secret")))
    }

    fn logged(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// What was done since this was last asked, without looks.
    fn done(&self) -> Vec<String> {
        let lines = self.logged();
        fs::write(self.path("log"), "").unwrap();
        let root = self.machine.root.display().to_string();
        let lines = lines
            .lines()
            .filter(|line| !line.starts_with("systemctl show"));
        lines.map(|line| line.replace(&root, "")).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.folder.path().join("pid")).unwrap_or_default();
        let pid = pid
            .trim()
            .parse()
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
    }
}

#[test]
fn a_service_is_installed_once_and_changed_by_a_restart() {
    let rig = Rig::new(true);
    rig.install(Some("1")).unwrap();
    let id = id();
    let unit = rig.path("etc/systemd/system/muster-agent.service");
    let text = fs::read_to_string(&unit).unwrap();
    assert!(text.contains("\nExecStart=/bin/muster-agent\n"), "{text}");
    assert_eq!(unit.metadata().unwrap().mode() & 0o777, 0o644);
    let state = owned(&rig.path("var/lib/muster-agent")).unwrap().unwrap();
    assert_eq!((state.uid, state.mode), (id, 0o700));
    let logged = rig.logged();
    let expected = [
        "systemd-sysusers /etc/sysusers.d/muster-agent.conf".to_owned(),
        format!("{id} join https://a:7070 --state-dir /var/lib/muster-agent secret"),
        "check --check --state-dir /var/lib/muster-agent MUSTER_SLOTS=1".into(),
        "systemctl daemon-reload".into(),
        "systemctl enable muster-agent.service".into(),
        "systemctl start muster-agent.service".into(),
    ];
    assert_eq!(rig.done(), expected);
    fs::write(rig.path("log"), logged).unwrap();
    assert_eq!(rig.plan(&Rig::wanted(Some("1"))), Ok(vec![]));

    rig.install(Some("2")).unwrap();
    let changed = [
        "check --check --state-dir /var/lib/muster-agent MUSTER_SLOTS=2",
        "systemctl restart muster-agent.service",
    ];
    assert_eq!(rig.done()[expected.len()..], changed);
    let kept = fs::read_to_string(rig.path("etc/muster/agent.env.old")).unwrap();
    assert_eq!(kept, "MUSTER_SLOTS=1\n");
}

#[test]
fn a_program_that_was_replaced_is_started_again() {
    let rig = Rig::new(true);
    rig.install(None).unwrap();
    assert_eq!(rig.plan(&Rig::wanted(None)), Ok(vec![]));
    let idle = rig.path("bin/idle");
    fs::copy(&idle, rig.path("bin/new")).unwrap();
    fs::rename(rig.path("bin/new"), &idle).unwrap();
    let steps = rig.plan(&Rig::wanted(None)).unwrap();
    let told = steps.last().unwrap().to_string();
    assert!(told.contains("its program has been replaced"), "{told}");
}

#[test]
fn a_setting_that_the_daemon_refuses_changes_nothing() {
    let rig = Rig::new(true);
    rig.install(Some("1")).unwrap();
    let why = rig.install(Some("99")).unwrap_err().to_string();
    assert!(why.contains("--slots: is 99"), "{why}");
    let settings = fs::read_to_string(rig.path("etc/muster/agent.env")).unwrap();
    assert_eq!(settings, "MUSTER_SLOTS=1\n");
    assert!(!rig.logged().contains("restart"));
}

#[test]
fn a_restart_that_would_end_workers_is_not_made() {
    let rig = Rig::new(true);
    fs::write(rig.path("kill-mode"), "control-group").unwrap();
    rig.install(Some("1")).unwrap();
    let why = rig.install(Some("2")).unwrap_err().to_string();
    assert!(why.contains("KillMode=control-group"), "{why}");
    assert!(!rig.logged().contains("restart"));
}

#[test]
fn a_daemon_that_does_not_start_says_why() {
    let rig = Rig::new(true);
    fs::write(rig.path("broken"), "").unwrap();
    let why = rig.install(None).unwrap_err().to_string();
    assert!(
        why.contains("Job for muster-agent.service failed."),
        "{why}"
    );
    assert!(why.contains("at most 32 are allowed"), "{why}");
}

#[test]
fn another_root_is_prepared_and_nothing_runs() {
    let rig = Rig::new(false);
    rig.install(Some("1")).unwrap();
    assert_eq!(
        rig.done(),
        [
            "systemd-sysusers --root= /etc/sysusers.d/muster-agent.conf".to_owned(),
            format!(
                "{} join https://a:7070 --state-dir /var/lib/muster-agent secret",
                id()
            ),
            "systemctl --root= enable muster-agent.service".into(),
        ]
    );
    assert_eq!(
        rig.machine.program().unwrap(),
        Path::new("/bin/muster-agent")
    );
    let other = Machine {
        program: "/nowhere/muster-agent".into(),
        ..rig.machine.clone()
    };
    let why = other.program().unwrap_err().to_string();
    assert!(
        why.contains("put the programs into the root folder first"),
        "{why}"
    );
}

#[test]
fn a_program_that_the_user_cannot_run_is_told() {
    let rig = Rig::new(true);
    let program = rig.path("bin/muster-agent");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o600)).unwrap();
    let why = rig.install(None).unwrap_err().to_string();
    assert!(
        why.contains("Put the programs where every user may run them"),
        "{why}"
    );
}

#[test]
fn the_processes_of_a_unit_are_found() {
    let rig = Rig::new(true);
    let unit = "/system.slice/muster-agent.service";
    for (pid, cgroup) in [
        (5, unit.to_owned()),
        (6, unit.to_owned()),
        (7, format!("{unit}/4f1a-g3")),
        (8, "/system.slice/sshd.service".to_owned()),
    ] {
        let folder = rig.path(&format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }
    fs::create_dir_all(rig.path("proc/9")).unwrap();
    // systemd has forgotten where a unit's processes are that has stopped.
    let mut state = rig.machine.unit(Daemon::Agent).unwrap();
    state.main_pid = Some(5);
    let mut held = rig.machine.held(&state);
    held.sort_by_key(|held| held.pid);
    let of = |pid, is_below| Held { pid, is_below };
    assert_eq!(held, [of(6, false), of(7, true)]);
}
