//! Looks at a machine, and does the steps: files, and the programs of systemd. It decides nothing.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs, io,
    io::Write as _,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    Daemon, Found, Held, Owned, Running, Step, UnitState, User,
    found::{PROPERTIES, is_in},
    plan::user_name,
    step::old,
};

/// The machine that a service is on.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    /// systemd runs here, and is spoken to.
    is_live: bool,
    /// The daemon's program, to be run here.
    program: PathBuf,
    /// Where the programs of systemd are looked for, if not where this process looks.
    search: Option<OsString>,
}

/// A process that was killed ends within milliseconds, unless a disk holds it. After ten seconds a person
/// must look.
const KILL_ROUNDS: usize = 500;
const KILL_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(
        "a service is installed by root: run this with sudo. Without root, run {0} in the foreground, as docs/cluster.md says"
    )]
    NotRoot(&'static str),
    #[error(
        "systemd does not run here (as in a container), and nothing else is spoken to. Run {0} in the foreground under what runs here, as \
         docs/cluster.md says, or prepare the root folder of another machine with --root"
    )]
    NoSystemd(&'static str),
    #[error("{what} {}: {why}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        why: io::Error,
    },
    #[error("{program} cannot be run: {why}")]
    Program { program: String, why: io::Error },
    #[error("{line} failed: {said}")]
    Failed { line: String, said: String },
    #[error(
        "user {user} cannot run {}: {why}. Put the programs where every user may run them, such as /usr/local/bin", program.display()
    )]
    NotForUser {
        user: String,
        program: PathBuf,
        why: io::Error,
    },
    #[error(
        "this program is not at {}: put the programs into the root folder first, and give this command with the one that is there", .0.display()
    )]
    NotInRoot(PathBuf),
    #[error(
        "{unit} still has processes {pids:?}, although they were killed; look at them (a disk may hold them), and run this again"
    )]
    StillThere { unit: String, pids: Vec<u32> },
    #[error("user {0} is not known here, although it was made")]
    UserNotMade(String),
    #[error("{unit} does not start: {said}\nIts log: journalctl --unit {unit}")]
    NotStarted { unit: String, said: String },
    #[error(
        "a restart would end the workers, because {unit} has KillMode={kill_mode}; the unit of Muster has `process`. Take that line out of \
         its drop-ins (systemctl cat {unit}) and run this again. Everything else is done"
    )]
    WorkersWouldEnd { unit: String, kill_mode: String },
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_owned();
    move |why| Failure::File { what, path, why }
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// It has no systemd, or the caller is not root.
    pub fn this(daemon: Daemon) -> Result<Self, Failure> {
        // As sd_booted(3) finds it out.
        if !Path::new("/run/systemd/system").is_dir() {
            return Err(Failure::NoSystemd(daemon.name()));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::NotRoot(daemon.name()));
        }
        Ok(Self {
            root: "/".into(),
            is_live: true,
            program: own_program()?,
            search: None,
        })
    }

    /// The root folder of a machine that does not run, as of an image.
    pub fn at(root: &Path) -> Result<Self, Failure> {
        let root = fs::canonicalize(root).map_err(file("find", root))?;
        Ok(Self {
            root,
            is_live: false,
            program: own_program()?,
            search: None,
        })
    }

    /// Nothing runs there.
    pub fn is_at_rest(&self) -> bool {
        !self.is_live
    }

    /// A path of that machine, as this process reaches it.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The path of this program on that machine.
    ///
    /// # Errors
    /// It is not there.
    pub fn program(&self) -> Result<PathBuf, Failure> {
        if !self.is_live
            && let Ok(below) = self.program.strip_prefix(&self.root)
        {
            return Ok(Path::new("/").join(below));
        }
        let there = self.path(&self.program);
        match there.symlink_metadata() {
            Ok(_) => Ok(self.program.clone()),
            Err(_) => Err(Failure::NotInRoot(there)),
        }
    }

    /// `is_enrolled` is asked with the state directory.
    pub fn look(
        &self,
        daemon: Daemon,
        run_as: Option<&str>,
        is_enrolled: impl FnOnce(&Path) -> bool,
    ) -> Result<Found, Failure> {
        let mut files = BTreeMap::new();
        for path in daemon.files() {
            match fs::read_to_string(self.path(&path)) {
                Ok(text) => drop(files.insert(path, text)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(file("read", &path)(e)),
            }
        }
        let drop_in = files.get(&daemon.drop_in()).map(String::as_str);
        let user = self.user(&user_name(daemon, run_as, drop_in))?;
        let unit = self.is_live.then(|| self.unit(daemon)).transpose()?;
        let state_dir = self.path(daemon.state_dir());
        Ok(Found {
            user,
            state_dir: owned(&state_dir)?,
            is_enrolled: is_enrolled(&state_dir),
            is_enabled: match &unit {
                Some(unit) => unit.is_enabled,
                None => self.path(&daemon.enabled()).symlink_metadata().is_ok(),
            },
            unit,
            files,
        })
    }

    fn unit(&self, daemon: Daemon) -> Result<UnitState, Failure> {
        let shown = self.ran(
            "systemctl",
            [
                "show".into(),
                daemon.unit(),
                format!("--property={PROPERTIES}"),
            ],
        )?;
        let mut state = UnitState::parse(&String::from_utf8_lossy(&shown.stdout));
        state.running = state.main_pid.and_then(running);
        if state.cgroup.is_empty() {
            // systemd forgets the cgroup of a unit that has stopped, also if processes live there.
            state.cgroup = format!("/system.slice/{}", daemon.unit());
        }
        Ok(state)
    }

    /// The user as this machine's name services know it, or as it stands in the other root's file.
    fn user(&self, name: &str) -> Result<Option<User>, Failure> {
        let text = if self.is_live {
            // It fails for an unknown user.
            let output = self.run("getent", ["passwd", name])?;
            String::from_utf8_lossy(&output.stdout).into_owned()
        } else {
            let path = self.path(Path::new("/etc/passwd"));
            match fs::read_to_string(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
                text => text.map_err(file("read", &path))?,
            }
        };
        Ok(text.lines().find_map(|line| user_of(line, name)))
    }

    /// The processes of the unit, apart from the daemon itself.
    pub fn held(&self, unit: &UnitState) -> Vec<Held> {
        let proc = self.path(Path::new("/proc"));
        let entries = fs::read_dir(&proc).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| Some(*pid) != unit.main_pid)
            .filter_map(|pid| {
                let cgroups = fs::read_to_string(proc.join(format!("{pid}/cgroup"))).ok()?;
                let is_below = is_in(&cgroups, &unit.cgroup)?;
                Some(Held { pid, is_below })
            })
            .collect()
    }

    /// Does a step of a plan. `token` goes to the standard input of an enrolment.
    pub fn take(&self, daemon: Daemon, step: &Step, token: Option<&str>) -> Result<(), Failure> {
        match step {
            Step::Write { path, text, was } => self.write(path, text, was.is_some()),
            Step::SetAside(path) => {
                let path = self.path(path);
                fs::rename(&path, old(&path)).map_err(file("rename", &path))
            }
            Step::RemoveFile(path) => {
                let path = self.path(path);
                fs::remove_file(&path).map_err(file("remove", &path))?;
                // The folder of a drop-in, if nothing else is in it.
                let parent = path
                    .parent()
                    .filter(|it| it.extension() == Some(OsStr::new("d")));
                parent.map_or(Ok(()), |parent| fs::remove_dir(parent).or(Ok(())))
            }
            Step::RemoveFolder(path) => {
                let path = self.path(path);
                match fs::remove_dir_all(&path) {
                    // A disk is mounted there: it is empty now.
                    Err(e) if e.kind() == io::ErrorKind::ResourceBusy => Ok(()),
                    removed => removed.map_err(file("remove", &path)),
                }
            }
            Step::MakeUser { file, .. } => {
                let mut args = Vec::new();
                if !self.is_live {
                    args.push(format!("--root={}", self.root.display()));
                }
                args.push(self.path(file).display().to_string());
                self.ran("systemd-sysusers", args).map(drop)
            }
            Step::Folder { path, owner } => self.folder(path, owner),
            Step::Enrol { user, args } => {
                let mut command = self.as_user(user)?;
                command.args(args).arg("--state-dir");
                command.arg(self.path(daemon.state_dir()));
                self.own(user, command, token)
            }
            Step::Check { user, settings } => {
                let mut command = self.as_user(user)?;
                command
                    .arg("--check")
                    .arg("--state-dir")
                    .arg(daemon.state_dir());
                command.envs(settings.iter().map(|it| (&it.name, &it.value)));
                self.own(user, command, None)
            }
            Step::Reload => self.systemctl(&["daemon-reload"], None),
            Step::Enable(daemon) => self.systemctl(&["enable"], Some(*daemon)),
            Step::Disable(daemon) => self.systemctl(&["disable"], Some(*daemon)),
            Step::Stop(daemon) => self.systemctl(&["stop"], Some(*daemon)),
            Step::Kill(daemon) => self.kill(*daemon),
            Step::Start(daemon) => self.start(*daemon, "start"),
            Step::Restart(daemon, _) => {
                let kill_mode = self.unit(*daemon)?.kill_mode;
                if *daemon == Daemon::Agent && kill_mode != "process" {
                    return Err(Failure::WorkersWouldEnd {
                        unit: daemon.unit(),
                        kill_mode,
                    });
                }
                self.start(*daemon, "restart")
            }
        }
    }

    fn start(&self, daemon: Daemon, verb: &str) -> Result<(), Failure> {
        let output = self.run("systemctl", [verb, &daemon.unit()])?;
        if output.status.success() {
            return Ok(());
        }
        let unit = daemon.unit();
        let args = ["--unit", &unit, "--lines=5", "--no-pager", "--output=cat"];
        let log = self.run("journalctl", args);
        let log = log.map(|log| log.stdout).unwrap_or_default();
        let said = format!("{}\n{}", said(&output), String::from_utf8_lossy(&log));
        Err(Failure::NotStarted {
            unit,
            said: said.trim().to_owned(),
        })
    }

    /// Ends what is left of a unit that has stopped. systemd itself does not reach it any more.
    fn kill(&self, daemon: Daemon) -> Result<(), Failure> {
        let unit = self.unit(daemon)?;
        for _ in 0..KILL_ROUNDS {
            let held = self.held(&unit);
            if held.is_empty() {
                return Ok(());
            }
            for held in held {
                let pid = rustix::process::Pid::from_raw(held.pid.cast_signed());
                // It may have ended just now.
                let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            }
            thread::sleep(KILL_PAUSE);
        }
        Err(Failure::StillThere {
            unit: daemon.unit(),
            pids: self.held(&unit).iter().map(|held| held.pid).collect(),
        })
    }

    fn systemctl(&self, verb: &[&str], daemon: Option<Daemon>) -> Result<(), Failure> {
        let mut args = Vec::new();
        if !self.is_live {
            args.push(format!("--root={}", self.root.display()));
        }
        args.extend(verb.iter().map(|word| (*word).to_owned()));
        args.extend(daemon.map(Daemon::unit));
        self.ran("systemctl", args).map(drop)
    }

    /// Replaces a file whole, and keeps what it was.
    fn write(&self, path: &Path, text: &str, keeps: bool) -> Result<(), Failure> {
        let path = self.path(path);
        let parent = path.parent().unwrap_or(&self.root);
        let mut folders = fs::DirBuilder::new();
        let folders = folders.recursive(true).mode(0o755);
        folders.create(parent).map_err(file("make", parent))?;
        if keeps {
            fs::copy(&path, old(&path)).map_err(file("copy", &path))?;
        }
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let write = || {
            let mut options = fs::OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o644);
            let mut out = options.open(&new)?;
            // Whatever umask the caller has.
            out.set_permissions(fs::Permissions::from_mode(0o644))?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(file("write", &path))
    }

    fn folder(&self, path: &Path, owner: &str) -> Result<(), Failure> {
        let user = self.user(owner)?;
        let user = user.ok_or_else(|| Failure::UserNotMade(owner.to_owned()))?;
        let path = self.path(path);
        let make = || {
            let mut folders = fs::DirBuilder::new();
            folders.recursive(true).mode(0o755);
            folders.create(path.parent().unwrap_or(&self.root))?;
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            chown(&path, Some(user.uid), Some(user.gid))
        };
        make().map_err(file("make", &path))
    }

    /// This program, to be run as a user, without what root's environment says to the daemon.
    fn as_user(&self, name: &str) -> Result<Command, Failure> {
        let user = self.user(name)?;
        let user = user.ok_or_else(|| Failure::UserNotMade(name.to_owned()))?;
        let mut command = Command::new(&self.program);
        command.current_dir("/");
        for (variable, _) in env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"MUSTER_") {
                command.env_remove(variable);
            }
        }
        // Without root there is one user only. With it, root's groups go, too.
        let is_other = rustix::process::geteuid().as_raw() != user.uid;
        if is_other {
            command.uid(user.uid).gid(user.gid);
        }
        Ok(command)
    }

    /// Runs this program as a user.
    fn own(&self, user: &str, mut command: Command, input: Option<&str>) -> Result<(), Failure> {
        let not_run = |command: &Command, why| Failure::NotForUser {
            user: user.to_owned(),
            program: command.get_program().into(),
            why,
        };
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|why| not_run(&command, why))?;
        // One that ends without reading it says why.
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(input.unwrap_or_default().as_bytes());
        }
        let output = child.wait_with_output();
        let output = output.map_err(|why| not_run(&command, why))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::Failed {
            line: line(&command),
            said: said(&output),
        })
    }

    fn run<S: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Output, Failure> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        if let Some(search) = &self.search {
            command.env("PATH", search);
        }
        command.output().map_err(|why| Failure::Program {
            program: program.to_owned(),
            why,
        })
    }

    /// The same, and it must succeed.
    fn ran<S: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Output, Failure> {
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().into()).collect();
        let output = self.run(program, &args)?;
        if output.status.success() {
            return Ok(output);
        }
        let mut command = Command::new(program);
        Err(Failure::Failed {
            line: line(command.args(&args)),
            said: said(&output),
        })
    }
}

fn own_program() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(file("find", Path::new("/proc/self/exe")))
}

fn line(command: &Command) -> String {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    match (err.trim(), out.trim()) {
        ("", "") => output.status.to_string(),
        ("", out) => out.to_owned(),
        (err, _) => err.to_owned(),
    }
}

/// A line of passwd(5).
fn user_of(line: &str, name: &str) -> Option<User> {
    let mut fields = line.split(':');
    let is_it = fields.next() == Some(name);
    let (_, uid, gid) = (fields.next(), fields.next()?, fields.next()?);
    let user = User {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
    };
    is_it.then_some(user)
}

fn owned(path: &Path) -> Result<Option<Owned>, Failure> {
    let about = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        about => about.map_err(file("look at", path))?,
    };
    let names = fs::read_dir(path).map_err(file("read", path))?.flatten();
    // What a file system of its own has before anything is put there.
    let is_empty = names
        .map(|it| it.file_name())
        .all(|name| name == "lost+found");
    Ok(Some(Owned {
        uid: about.uid(),
        mode: about.mode() & 0o7777,
        is_empty,
    }))
}

/// `None`: it has ended meanwhile.
fn running(pid: u32) -> Option<Running> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let environment = fs::read(folder.join("environ")).ok()?;
    let variables = environment.split(|byte| *byte == 0).filter_map(|variable| {
        let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    // Its path may be that of a mount namespace of its own. Of a file that is gone, the kernel says so
    // (proc(5)), and a program that runs can be replaced in no other way.
    let program = fs::read_link(folder.join("exe")).ok()?;
    Some(Running {
        environment: variables.collect(),
        is_current: !program
            .as_os_str()
            .as_encoded_bytes()
            .ends_with(b" (deleted)"),
    })
}

#[cfg(test)]
mod tests;
