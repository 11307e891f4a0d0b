//! What only the user's own machine knows: which interpreter a shell would start here, and whether the script is there.

use std::{env, path::Path};

use super::{
    DryRun, Run,
    python::{self, Active},
};
use crate::{context::Context, fail::Failure, jobfile::absolute};

/// With a coordinator on this machine, the job gets the interpreter that the user's shell would start, and a
/// script that is not there is told at once. A check that asks no coordinator changes nothing.
pub(super) async fn at_home(cx: &Context, args: &mut Run, here: &str) -> Result<(), Failure> {
    if args.dry_run == Some(DryRun::Client) {
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
    if let Some(script) = script.filter(|script| local && !script.starts_with('-')) {
        let dir = absolute(args.workdir.as_deref().unwrap_or("."), here.as_ref());
        let script = absolute(script, dir.as_ref());
        if let Err(error) = std::fs::metadata(&script) {
            return Err(Failure::usage(format!("SCRIPT: {script}: {error}")));
        }
    }
    Ok(())
}
