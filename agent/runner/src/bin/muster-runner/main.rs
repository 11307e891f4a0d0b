//! The runner's binary. `muster-runner hold --dir DIR` holds one worker group. Called as
//! `muster-shim`, it wraps one rank; called as `muster-ranks`, it starts all ranks of a node; called
//! as `muster-standby`, it waits for a generation to be the runner or the keeper of. In jobs of MPI it is
//! also `muster-launch`, `muster-lend` and `muster-rsh`.
//! `muster-runner pod --dir DIR` is the init process of a container that holds such groups.

/// Writes a line to standard error, which is the runner's log from the moment it holds a directory.
/// A write that fails, as on a full disk, is ignored. `eprintln!` would panic, and the runner's end
/// would end its workers.
macro_rules! say {
    ($($part:tt)*) => {
        drop(std::io::Write::write_all(&mut std::io::stderr(), format!("{}\n", format_args!($($part)*)).as_bytes()))
    };
}

mod affinity;
mod ask;
mod attend;
mod below;
mod control;
mod env_files;
mod fence;
mod group;
mod hold;
mod inspect;
mod keeper;
mod limits;
mod lines;
mod logs;
mod memory;
mod missing;
mod mouth;
mod movement;
mod mpi;
mod output;
mod parked;
mod phases;
mod pod;
mod poll;
mod rank_env;
mod rank_link;
mod ranks;
mod register;
mod runner;
mod search;
mod served;
mod shim;
mod standby;
mod sys;
mod tell;
mod time;
mod tree;
mod user;
mod why;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_runner::{as_user, place};

const HELP: &str = "\
Holds one node's worker group of one training job: starts it, drains its output, keeps the exit status of every rank,
stops it and proves that nothing of it lives.

Usage:
  muster-runner hold --dir DIR [--foreground] [--no-cgroup] [--launcher PID --keeper PID]
  muster-runner pod --dir DIR
  muster-runner install --dir DIR
  muster-runner ask
  muster-runner as UID:GID[:GROUP,...] [--cgroup NAME] COMMAND ...

`pod` is the first process of a container that workers live in. It starts the runners that an agent in another container of the
same pod asks for. SIGTERM ends the workers with their grace, then it ends. `install` puts this program into a volume, for a
container whose image does not have it. `ask` runs the short program that standard input describes, prints what the program
has said, and leaves nothing of it behind. `as` becomes that user and then does the rest; only root can.

Options:
  --dir DIR      hold: directory with hold.json; sockets, records and logs are made in it
                 pod: the volume that the agent's container mounts at the same path
                 install: where muster-runner is put; an older one is replaced as a whole
  --foreground   Stay in the foreground (the default as PID 1)
  --no-cgroup    Hold the group by its process tree alone, as where no cgroup can be made
  --launcher PID Take over this launcher, a child of this process, and the descriptors 3 to 6 (only launchers use this)
  --keeper PID   Name the parent process as the keeper in the records, provided that it is this one (only launchers use this)
  --version      Print the version and the commit it was built from
  --help         Print this text

Exit status: 0 the runner is ready (foreground: it has ended in order), 1 it could not start, 2 wrong usage,
3 another runner holds the directory or has held it.
";

fn main() -> ExitCode {
    muster_runner::open_files::take_told();
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some(shim::NAME) => return shim::run(args.collect()),
        Some(attend::NAME) => return attend::run(args.collect()),
        Some(mpi::launch::NAME) => return mpi::launch::run(args.collect()),
        Some(mpi::lend::NAME) => return mpi::lend::run(),
        Some(name) if mpi::rsh::NAMES.contains(&name) => {
            return mpi::rsh::run(name, args.collect());
        }
        Some(standby::PROGRAM) => return standby::run(args.collect()),
        Some(keeper::PROGRAM) => {
            return hold::keep_forked(args.next().unwrap_or_default().as_ref());
        }
        _ => {}
    }
    let args: Vec<OsString> = args.collect();
    if args.first().is_some_and(|first| first == place::AS) {
        return user::run(args.into_iter().skip(1).collect());
    }
    match parse(args) {
        Ok(Invocation::Help) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Ok(Invocation::Version) => {
            println!("muster-runner {}", version());
            ExitCode::SUCCESS
        }
        Ok(Invocation::Hold(options)) => hold::run(&options),
        Ok(Invocation::Ask) => ask::run(),
        Ok(Invocation::Answer) => pod::answer_one(),
        Ok(Invocation::Pod(dir)) => pod::run(&dir),
        Ok(Invocation::Install(dir)) => match install(&dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                say!("muster-runner: {}: {e}", dir.display());
                ExitCode::FAILURE
            }
        },
        Err(wrong) => {
            say!("muster-runner: {wrong}\nSee muster-runner --help.");
            ExitCode::from(2)
        }
    }
}

/// Copies this program. A process that executes the copy meanwhile gets the whole old one or the whole new one.
fn install(dir: &Path) -> std::io::Result<()> {
    let (new, name) = (dir.join(".muster-runner.new"), dir.join("muster-runner"));
    std::fs::copy(std::env::current_exe()?, &new)?;
    std::fs::rename(new, name)
}

/// Version and commit, as in `runner.json`.
fn version() -> String {
    let commit = option_env!("MUSTER_COMMIT").unwrap_or("unknown");
    format!("{} (commit {commit})", env!("CARGO_PKG_VERSION"))
}

#[derive(Debug, PartialEq)]
enum Invocation {
    Help,
    Version,
    Hold(Options),
    Ask,
    Answer,
    /// The volume.
    Pod(PathBuf),
    /// Where to.
    Install(PathBuf),
}

/// The commands that take a directory.
#[derive(PartialEq)]
enum Role {
    Hold,
    Pod,
    Install,
}

/// The options of `hold`.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) dir: PathBuf,
    pub(crate) foreground: bool,
    pub(crate) cgroup: bool,
    /// The launcher that was forked together with this runner.
    pub(crate) launcher: Option<i32>,
    /// The process that has forked this one and becomes its keeper.
    pub(crate) keeper: Option<i32>,
}

fn parse(args: Vec<OsString>) -> Result<Invocation, String> {
    let mut args = args.into_iter();
    let role = match args.next().as_ref().and_then(|a| a.to_str()) {
        None => return Err("a command is missing".into()),
        Some("--help" | "-h" | "help") => return Ok(Invocation::Help),
        Some("--version" | "-V") => return Ok(Invocation::Version),
        Some(word @ (place::ASK | as_user::ANSWER)) => {
            return match args.next() {
                None if word == place::ASK => Ok(Invocation::Ask),
                None => Ok(Invocation::Answer),
                Some(more) => Err(format!("unknown argument {more:?}")),
            };
        }
        Some("hold") => Role::Hold,
        Some("pod") => Role::Pod,
        Some("install") => Role::Install,
        Some(other) => return Err(format!("unknown command {other:?}")),
    };
    let (mut dir, mut foreground, mut cgroup) = (None, false, true);
    let (mut launcher, mut keeper) = (None, None);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--help" | "-h") => return Ok(Invocation::Help),
            Some("--foreground") if role == Role::Hold => foreground = true,
            Some("--no-cgroup") if role == Role::Hold => cgroup = false,
            Some(flag @ ("--launcher" | "--keeper")) if role == Role::Hold => {
                let pid = args.next().and_then(|pid| pid.to_str()?.parse().ok());
                let pid = pid.ok_or_else(|| format!("{flag} needs the pid of a process"))?;
                *(if flag == "--keeper" {
                    &mut keeper
                } else {
                    &mut launcher
                }) = Some(pid);
            }
            Some("--dir") => {
                dir = Some(PathBuf::from(args.next().ok_or("--dir needs a directory")?))
            }
            Some(text) if text.starts_with("--dir=") => {
                dir = Some(PathBuf::from(&text["--dir=".len()..]))
            }
            _ => return Err(format!("unknown argument {arg:?}")),
        }
    }
    let dir = dir.ok_or("--dir is missing")?;
    Ok(match role {
        Role::Pod => Invocation::Pod(dir),
        Role::Install => Invocation::Install(dir),
        Role::Hold => Invocation::Hold(Options {
            dir,
            foreground,
            cgroup,
            launcher,
            keeper,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Invocation, String> {
        parse(args.iter().map(Into::into).collect())
    }

    #[test]
    fn invocations() {
        let options = |foreground, cgroup| Options {
            dir: "/d".into(),
            foreground,
            cgroup,
            launcher: None,
            keeper: None,
        };
        let hold = |foreground, cgroup| Ok(Invocation::Hold(options(foreground, cgroup)));
        let forked = Options {
            launcher: Some(8),
            keeper: Some(7),
            ..options(false, true)
        };
        assert_eq!(
            parsed(&["hold", "--dir", "/d", "--launcher", "8", "--keeper", "7"]),
            Ok(Invocation::Hold(forked))
        );
        assert_eq!(
            parsed(&["hold", "--dir", "/d", "--keeper", "x"]),
            Err("--keeper needs the pid of a process".into())
        );
        assert_eq!(parsed(&["hold", "--dir", "/d"]), hold(false, true));
        assert_eq!(
            parsed(&["hold", "--dir=/d", "--foreground", "--no-cgroup"]),
            hold(true, false)
        );
        assert_eq!(parsed(&["--version"]), Ok(Invocation::Version));
        assert_eq!(parsed(&["hold", "--help"]), Ok(Invocation::Help));
        assert_eq!(parsed(&["ask"]), Ok(Invocation::Ask));
        assert_eq!(parsed(&["answer"]), Ok(Invocation::Answer));
        assert_eq!(parsed(&["ask", "x"]), Err("unknown argument \"x\"".into()));
        assert_eq!(parsed(&[]), Err("a command is missing".into()));
        assert_eq!(parsed(&["hold"]), Err("--dir is missing".into()));
        assert_eq!(
            parsed(&["hold", "--dir"]),
            Err("--dir needs a directory".into())
        );
        assert_eq!(parsed(&["hold", "x"]), Err("unknown argument \"x\"".into()));
        assert_eq!(
            parsed(&["pod", "--dir", "/v"]),
            Ok(Invocation::Pod("/v".into()))
        );
        assert_eq!(
            parsed(&["pod", "--dir", "/v", "--no-cgroup"]),
            Err("unknown argument \"--no-cgroup\"".into())
        );
        assert_eq!(parsed(&["run"]), Err("unknown command \"run\"".into()));
    }
}
