//! Flags of a daemon as settings: nearly every flag has a variable, and the daemon's own description of
//! its command line knows which.

use std::ffi::OsString;

use clap::{Command, parser::ValueSource};

use crate::{Daemon, Setting};

/// The settings that these flags mean.
///
/// # Errors
/// What is wrong with them, in the words of the daemon's own command line.
pub fn settings_of(
    daemon: Daemon,
    command: Command,
    flags: &[OsString],
) -> Result<Vec<Setting>, String> {
    let state_dir = daemon.state_dir().as_os_str().to_owned();
    if flags
        .iter()
        .any(|flag| flag == "--state-dir" || flag.as_encoded_bytes().starts_with(b"--state-dir="))
    {
        return Err(format!(
            "--state-dir: the service's state is in {}; mount the disk that you mean there",
            state_dir.display()
        ));
    }
    let line = [daemon.name().into(), "--state-dir".into(), state_dir];
    let line = line.into_iter().chain(flags.iter().cloned());
    let given = command
        .clone()
        .try_get_matches_from(line)
        .map_err(|e| e.to_string())?;
    let mut settings = Vec::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let is_given = given.try_contains_id(id).unwrap_or(false)
            && given.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given || id == "state_dir" {
            continue;
        }
        let flag = arg.get_long().unwrap_or(id);
        let Some(name) = arg.get_env().and_then(|name| name.to_str()) else {
            return Err(format!(
                "--{flag}: is for a call by hand, and no setting of a service"
            ));
        };
        let values: Vec<&str> = given
            .get_raw(id)
            .into_iter()
            .flatten()
            .map(|value| value.to_str())
            .collect::<Option<_>>()
            .ok_or_else(|| format!("--{flag}: is not UTF-8"))?;
        let value = values.join(",");
        if value.contains('\n') {
            return Err(format!("--{flag}: has a line break"));
        }
        settings.push(Setting {
            name: name.to_owned(),
            value,
        });
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn daemon() -> Command {
        let long = |name: &'static str| Arg::new(name).long(name);
        Command::new("muster-agent").args([
            Arg::new("state_dir")
                .long("state-dir")
                .env("MUSTER_STATE_DIR")
                .required(true),
            long("slots")
                .env("MUSTER_SLOTS")
                .value_parser(clap::value_parser!(u32)),
            long("label")
                .env("MUSTER_LABELS")
                .value_delimiter(',')
                .action(ArgAction::Append),
            long("senses-only")
                .env("MUSTER_SENSES_ONLY")
                .action(ArgAction::SetTrue),
            long("logs").env("MUSTER_LOGS").default_value("5"),
            long("print-report").action(ArgAction::SetTrue),
        ])
    }

    fn settings(flags: &[&str]) -> Result<Vec<String>, String> {
        let flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
        let settings = settings_of(Daemon::Agent, daemon(), &flags)?;
        let line = |it: &Setting| format!("{}={}", it.name, it.value);
        Ok(settings.iter().map(line).collect())
    }

    #[test]
    fn a_flag_becomes_its_variable() {
        assert_eq!(settings(&[]), Ok(vec![]));
        let flags = [
            "--label",
            "a=1",
            "--slots=2",
            "--label",
            "b=2,c=3",
            "--senses-only",
        ];
        let expected = [
            "MUSTER_SLOTS=2",
            "MUSTER_LABELS=a=1,b=2,c=3",
            "MUSTER_SENSES_ONLY=true",
        ];
        assert_eq!(settings(&flags), Ok(expected.map(String::from).to_vec()));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for (flags, says) in [
            (
                &["--state-dir", "/nvme"][..],
                "mount the disk that you mean there",
            ),
            (&["--state-dir=/nvme"], "/var/lib/muster-agent"),
            (&["--print-report"], "is for a call by hand"),
            (&["--slots", "many"], "--slots"),
            (&["--slots"], "--slots"),
            (&["--label", "a=\n"], "has a line break"),
            (&["--unknown"], "--unknown"),
        ] {
            let why = settings(flags).unwrap_err();
            assert!(why.contains(says), "{flags:?}: {why}");
        }
    }
}
