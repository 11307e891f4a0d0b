//! The interpreter of the shell in which the user stands. With a coordinator on this machine the ranks get
//! it, as they would under torchrun. Nodes elsewhere may not have it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use tokio::{process::Command, time::timeout};

/// Variables by which an environment says that it is active.
const VARIABLES: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];
/// Folder of the programs by which pyenv, asdf and others choose an interpreter for each directory.
const SHIMS: &str = "/shims/";
/// How long such a program may take to say which one it would start. It takes a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// An interpreter that the user's shell would start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Active {
    /// Of an environment that this variable names.
    Environment { python: String, by: &'static str },
    /// Of the project that the script lies in: `.venv`, as uv makes it, in its folder or one above.
    Project(String),
    /// A program that starts another interpreter in each directory.
    Shim(String),
}

/// What is active. `None`: nothing, and the nodes' own python3 is as good. `folder`: that of the script.
pub(super) fn active(
    folder: &Path,
    variable: impl Fn(&str) -> Option<String>,
    is_program: impl Fn(&str) -> bool,
) -> Option<Active> {
    let path = variable("PATH").unwrap_or_default();
    let places: Vec<&str> = path.split(':').collect();
    let environments = VARIABLES.iter().filter_map(|by| {
        let prefix = variable(by).filter(|prefix| !prefix.is_empty())?;
        let folder = format!("{}/bin", prefix.trim_end_matches('/'));
        let python = format!("{folder}/python3");
        let at = places.iter().position(|place| *place == folder);
        is_program(&python).then_some((at.unwrap_or(places.len()), python, *by))
    });
    // Of two, the shell takes the one that is first in its PATH.
    if let Some((_, python, by)) = environments.min_by_key(|(at, ..)| *at) {
        return Some(Active::Environment { python, by });
    }
    let above = folder.ancestors().filter_map(|folder| folder.to_str());
    let mut projects =
        above.map(|folder| format!("{}/.venv/bin/python3", folder.trim_end_matches('/')));
    if let Some(python) = projects.find(|python| is_program(python)) {
        return Some(Active::Project(python));
    }
    let found = places
        .iter()
        .map(|place| format!("{place}/python3"))
        .find(|python| is_program(python))?;
    found.contains(SHIMS).then_some(Active::Shim(found))
}

pub(super) fn is_program(path: &str) -> bool {
    fs::metadata(Path::new(path)).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The `python3` in the folder of this interpreter. `None`: there is none.
pub(super) fn beside(python: &str, is_program: impl Fn(&str) -> bool) -> Option<String> {
    let (folder, _) = python.rsplit_once('/')?;
    Some(format!("{folder}/python3")).filter(|beside| is_program(beside))
}

/// The interpreter that this program starts here. `None`: it does not say.
pub(super) async fn behind(shim: &str) -> Option<String> {
    let mut question = Command::new(shim);
    question
        .args(["-c", "import sys; print(sys.executable)"])
        .kill_on_drop(true);
    let said = timeout(PATIENCE, question.output()).await.ok()?.ok()?;
    let python = String::from_utf8(said.stdout).ok()?.trim().to_owned();
    (said.status.success() && python.starts_with('/')).then_some(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)], programs: &[&str]) -> Option<Active> {
        let value = |name: &str| {
            let mut all = variables.iter().filter(|(own, _)| *own == name);
            all.next().map(|(_, value)| (*value).to_owned())
        };
        active(Path::new("/home/ada/work/train"), value, |path| {
            programs.contains(&path)
        })
    }

    fn environment(python: &str, by: &'static str) -> Option<Active> {
        let python = python.to_owned();
        Some(Active::Environment { python, by })
    }

    #[test]
    fn the_environment_that_the_shell_would_take_is_found() {
        let both = ["/v/bin/python3", "/c/bin/python3", "/usr/bin/python3"];
        let set = |path| {
            [
                ("VIRTUAL_ENV", "/v"),
                ("CONDA_PREFIX", "/c/"),
                ("PATH", path),
            ]
        };
        let conda = environment("/c/bin/python3", "CONDA_PREFIX");
        let venv = environment("/v/bin/python3", "VIRTUAL_ENV");
        assert_eq!(of(&set("/c/bin:/v/bin:/usr/bin"), &both), conda);
        assert_eq!(of(&set("/v/bin:/c/bin:/usr/bin"), &both), venv);
        // One that is not in the PATH was named all the same.
        assert_eq!(of(&set("/usr/bin"), &both), venv);
        assert_eq!(of(&set("/usr/bin"), &["/c/bin/python3"]), conda);
        assert_eq!(of(&set("/usr/bin"), &["/usr/bin/python3"]), None);
    }

    #[test]
    fn a_shim_is_no_interpreter_and_the_systems_python_is_left_to_the_nodes() {
        let path = |path| [("PATH", path)];
        let shim = "/home/ada/.pyenv/shims/python3";
        assert_eq!(
            of(
                &path("/home/ada/.pyenv/shims:/usr/bin"),
                &[shim, "/usr/bin/python3"]
            ),
            Some(Active::Shim(shim.into()))
        );
        assert_eq!(of(&path("/usr/bin"), &["/usr/bin/python3"]), None);
        assert_eq!(of(&[], &[]), None);
    }

    #[test]
    fn the_project_of_the_script_has_an_environment() {
        let (above, shim) = ("/home/ada/work/.venv/bin/python3", "/p/shims/python3");
        let programs = ["/v/bin/python3", above, shim, "/usr/bin/python3"];
        let path = ("PATH", "/p/shims:/usr/bin");
        let project = Some(Active::Project(above.into()));
        assert_eq!(of(&[path], &programs), project);
        // One that is active was chosen by hand.
        let venv = environment("/v/bin/python3", "VIRTUAL_ENV");
        assert_eq!(of(&[path, ("VIRTUAL_ENV", "/v")], &programs), venv);
    }

    #[test]
    fn a_program_gets_the_python3_beside_the_interpreter() {
        let there = |path: &str| path == "/o/bin/python3";
        let found = beside("/o/bin/python3.12", there);
        assert_eq!(found.as_deref(), Some("/o/bin/python3"));
        assert_eq!(beside("/p/bin/python3.12", there), None);
    }

    #[tokio::test]
    async fn a_shim_is_asked_what_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        let shim = dir.path().join("python3");
        let write = |text: &str| {
            fs::write(&shim, text).unwrap();
            fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("#!/bin/sh\necho /opt/python/3.12/bin/python3\n");
        let path = shim.to_str().unwrap();
        assert!(is_program(path) && !is_program("/") && !is_program("/no/such"));
        let python = behind(path).await;
        assert_eq!(python.as_deref(), Some("/opt/python/3.12/bin/python3"));
        write("#!/bin/sh\necho 'pyenv: version 3.13 is not installed' >&2; exit 1\n");
        assert_eq!(behind(path).await, None);
    }
}
