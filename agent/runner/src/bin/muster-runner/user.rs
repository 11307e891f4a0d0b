//! `muster-runner as UID:GID:GROUPS ...`: becomes that user for good, then executes itself with the
//! arguments that follow. Only root can.
//!
//! Before that it enters a cgroup which that user owns, if it is told a name: a runner makes the cgroup of
//! its worker group below its own, and may not below root's. The user can move his processes below it and
//! nowhere else.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use muster_runner::{leftovers, place::CGROUP};
use rustix::fs::{AtFlags, CWD, Gid, Uid};
use rustix::process::{getegid, geteuid, getgid, getuid};

use crate::tree;

/// The files of a cgroup that belong to whom it is delegated to (cgroup-v2.rst, "Model of Delegation").
const DELEGATED: [&str; 3] = ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"];
/// How often a cgroup is made that somebody removes before it is entered, because it is empty.
const TRIES: usize = 3;

struct User {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// `args` are those that follow `as`. It returns only if it fails.
pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let Err(why) = become_and_execute(args);
    say!("muster-runner: {why}");
    ExitCode::FAILURE
}

fn become_and_execute(args: Vec<OsString>) -> Result<std::convert::Infallible, String> {
    let mut args = args.into_iter().peekable();
    let numbers = args.next().unwrap_or_default();
    let user = numbers.to_str().and_then(parse);
    let user = user.ok_or_else(|| {
        format!("{numbers:?} is not UID:GID:GROUP,GROUP of a user that is not root")
    })?;
    let own = std::env::current_exe().map_err(|e| format!("own program: {e}"))?;
    if args.next_if(|arg| arg == CGROUP).is_some() {
        let name = args.next().unwrap_or_default();
        let name = name.to_str().filter(|name| is_plain(name));
        let name = name.ok_or_else(|| format!("{CGROUP} needs a plain name"))?;
        // Without one the worker group is held by its process tree, as on a machine without cgroups.
        let _ = enter(name, &user);
    }
    become_user(&user).map_err(|e| format!("become user {}: {e}", user.uid.as_raw()))?;
    let e = Command::new(&own).args(args).exec();
    Err(format!(
        "user {} cannot execute {}: {e}; every user must be able to enter the folders on its path",
        user.uid.as_raw(),
        own.display()
    ))
}

/// Root, and the number that the kernel takes for "as it is", are nobody to become.
fn parse(text: &str) -> Option<User> {
    let mut parts = text.split(':');
    let id = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let uid = id(parts.next()?).filter(|uid| *uid != 0)?;
    let gid = id(parts.next()?)?;
    let groups = parts.next().unwrap_or_default().split(',');
    let groups = groups
        .filter(|group| !group.is_empty())
        .map(|group| id(group).map(Gid::from_raw))
        .collect::<Option<Vec<_>>>()?;
    parts.next().is_none().then_some(User {
        uid: Uid::from_raw(uid),
        gid: Gid::from_raw(gid),
        groups,
    })
}

/// Groups first: whoever is no longer root can change none of them. All three numbers of each kind are
/// set, so that nothing leads back. This process has one thread.
fn become_user(user: &User) -> io::Result<()> {
    let User { uid, gid, groups } = user;
    rustix::thread::set_thread_groups(groups)?;
    rustix::thread::set_thread_res_gid(*gid, *gid, *gid)?;
    rustix::thread::set_thread_res_uid(*uid, *uid, *uid)?;
    match (getuid(), geteuid(), getgid(), getegid()) == (*uid, *uid, *gid, *gid) {
        true => Ok(()),
        false => Err(io::Error::other("the kernel has not done it")),
    }
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 200 && !name.starts_with('.') && name.chars().all(plain)
}

/// Makes a cgroup below this process's own, gives it to the user and enters it. Those of earlier runs that
/// are empty are removed: who was in them could not.
fn enter(name: &str, user: &User) -> io::Result<()> {
    let above = tree::own_cgroup()?;
    let prefix = name.split('-').next().unwrap_or(name);
    clear(&above, prefix);
    // A cgroup is of one user, so two that begin under the same name, as of two agents, get one each.
    let path = above.join(format!("{name}-{}", std::process::id()));
    let mut tries = 0;
    loop {
        match delegate(&path, user) {
            Err(_) if tries < TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

fn delegate(path: &Path, user: &User) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::write(path.join("cgroup.procs"), std::process::id().to_string())?;
    let own = |path: &Path| {
        let (uid, gid) = (Some(user.uid), Some(user.gid));
        rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    };
    own(path)?;
    for file in DELEGATED {
        own(&path.join(file))?;
    }
    Ok(())
}

/// Removes those in which nothing lives. Below one in which a runner lives there is the one that it has made
/// for a worker group, which is empty until the group starts.
fn clear(above: &Path, prefix: &str) {
    let folders = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|entry| entry.path()).collect()
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.split('-').next() == Some(prefix))
    };
    let is_dead = |path: &PathBuf| leftovers::populated(path).is_ok_and(|populated| !populated);
    let dead = folders(above).into_iter().filter(is_ours).filter(is_dead);
    for path in dead {
        for below in folders(&path) {
            let _ = fs::remove_dir(below);
        }
        let _ = fs::remove_dir(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_becomes_root() {
        let user = parse("1007:100:44,110").unwrap();
        assert_eq!(
            (user.uid.as_raw(), user.gid.as_raw(), user.groups.len()),
            (1007, 100, 2)
        );
        assert!(parse("1007:100:").unwrap().groups.is_empty() && parse("1007:100").is_some());
        for text in [
            "0:0:",
            "0:100",
            "-1:5",
            "4294967295:5:",
            "5:4294967295",
            "5:5:4294967295",
            "5",
            "",
            "5:5:5:5",
            "a:5",
            "5:5:a",
        ] {
            assert!(parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_cgroup_has_a_plain_name() {
        assert!(is_plain("musterjob-a1_b-g3"));
        for name in ["", ".", "..", "a/b", "../a", "a b"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
