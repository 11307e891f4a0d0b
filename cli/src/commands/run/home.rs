//! What only the user's own machine knows: which interpreter a shell would start here, and whether the script is there.

use std::{env, fs, path::Path};

use muster_foreign::spelling::nearest;

use super::{
    DryRun, Run,
    python::{self, Active},
};
use crate::{context::Context, fail::Failure, jobfile::absolute};

/// With a coordinator on this machine, the job gets the interpreter that the user's shell would start, and a
/// script that is not there is told at once. A check that asks no coordinator changes nothing.
pub(super) async fn at_home(cx: &Context, args: &mut Run, here: &str) -> Result<(), Failure> {
    // An image has its own interpreter, and may have the script.
    if args.dry_run == Some(DryRun::Client) || args.inside.image.is_some() {
        return Ok(());
    }
    let local = cx.is_local();
    let sets_path = args
        .env
        .iter()
        .any(|var| var.split('=').next() == Some("PATH"));
    if args.python.is_none() && !(args.no_python && sets_path) {
        let dir = absolute(args.workdir.as_deref().unwrap_or("."), here.as_ref());
        let script = args.script.first().filter(|_| !args.module);
        let script = script.map(|script| absolute(script, dir.as_ref()));
        let folder = script
            .as_deref()
            .and_then(|script| Path::new(script).parent());
        let folder = folder.unwrap_or(Path::new(&dir));
        let found = python::active(folder, |name| env::var(name).ok(), python::is_program);
        let (taken, why) = match found {
            None => (None, String::new()),
            Some(Active::Environment { python, by }) => (Some(python), format!("{by} is set")),
            Some(Active::Project(python)) => {
                (Some(python), "the script lies in its project".to_owned())
            }
            // The programs of other machines are not asked.
            Some(Active::Shim(_)) if !local => (None, String::new()),
            Some(Active::Shim(shim)) => {
                let behind = python::behind(&shim).await;
                let named = behind.and_then(|found| match args.no_python {
                    // torchrun is run by the `python3` of a folder.
                    true => python::beside(&found, python::is_program),
                    false => Some(found),
                });
                (named, format!("{shim} starts it"))
            }
        };
        match taken {
            Some(python) if local => {
                cx.say(format!("ranks run {python} ({why}); --python names another"));
                args.python = Some(python);
            }
            Some(python) => cx.say(format!(
                "ranks run the nodes' own python3, not {python} ({why}), which other machines may not have; --python names one of theirs"
            )),
            None => {}
        }
    }
    let script = args
        .script
        .first()
        .filter(|_| !args.no_python && !args.module);
    if !local {
        return Ok(());
    }
    if let Some(script) = script.filter(|script| !script.starts_with('-')) {
        let dir = absolute(args.workdir.as_deref().unwrap_or("."), here.as_ref());
        is_startable(Path::new(&absolute(script, dir.as_ref())))
            .map_err(|why| Failure::usage(format!("SCRIPT: {why}")))?;
    }
    let python = args.python.as_ref().filter(|python| python.contains('/'));
    let python = python.map(|python| absolute(python, here.as_ref()));
    match python.filter(|python| !python::is_program(python)) {
        Some(python) => Err(Failure::usage(format!(
            "--python: {python} is no program on this machine; `which python3` shows that of your shell"
        ))),
        None => Ok(()),
    }
}

/// The interpreter that the user's shell would start in this folder, for jobs on this machine. `None`: `python3` is as good.
pub(crate) async fn interpreter(folder: &Path) -> Option<String> {
    match python::active(folder, |name| env::var(name).ok(), python::is_program)? {
        Active::Environment { python, .. } | Active::Project(python) => Some(python),
        Active::Shim(shim) => python::behind(&shim).await,
    }
}

/// An interpreter as it is named: a relative path counts from here.
pub(crate) fn named(python: &str, here: &str) -> String {
    match python.contains('/') {
        true => absolute(python, here.as_ref()),
        false => python.to_owned(),
    }
}

/// Whether Python can start this file or folder. The error says what is wrong, and which file may be meant.
fn is_startable(script: &Path) -> Result<(), String> {
    let shown = script.display();
    match fs::metadata(script) {
        Ok(about) if about.is_dir() && !script.join("__main__.py").is_file() => Err(format!(
            "{shown} is a folder, and has no __main__.py; name the script in it"
        )),
        Ok(_) => Ok(()),
        Err(error) => {
            let beside = script.parent().and_then(|folder| fs::read_dir(folder).ok());
            let beside = beside.into_iter().flatten().flatten();
            let names = beside.filter_map(|entry| entry.file_name().into_string().ok());
            let names: Vec<String> = names.filter(|name| name.ends_with(".py")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let typed = script.file_name().and_then(|name| name.to_str());
            let meant = typed.and_then(|typed| nearest(typed, &names));
            let tip = meant.map_or_else(
                || "a path counts from this folder, or from --workdir".to_owned(),
                |meant| format!("did you mean {meant}?"),
            );
            Err(format!("{shown}: {error}; {tip}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_started_is_told_with_what_may_be_meant() {
        let there = tempfile::tempdir().unwrap();
        let at = |name: &str| there.path().join(name);
        fs::write(at("train.py"), "").unwrap();
        assert_eq!(is_startable(&at("train.py")), Ok(()));
        let told = |name: &str| is_startable(&at(name)).unwrap_err();
        assert!(told("trian.py").ends_with("did you mean train.py?"));
        assert!(told("evaluate.py").ends_with("or from --workdir"));
        fs::create_dir(at("pkg")).unwrap();
        assert!(told("pkg").contains("no __main__.py"));
        fs::write(at("pkg/__main__.py"), "").unwrap();
        assert_eq!(is_startable(&at("pkg")), Ok(()));
    }
}
