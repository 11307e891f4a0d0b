//! The variables of a job: given by name, from a file of each node, and with --env-all those of the shell, such as `module load` sets.

use muster_core::spec::{EnvVar, ValueFrom, is_of_a_launch};

use crate::fail::Failure;

/// Variables of the shell itself.
const OF_THE_SHELL: [&str; 9] = [
    "_", "PWD", "OLDPWD", "SHLVL", "SHELL", "PS1", "PS2", "IFS", "PPID",
];
/// Variables of the login, the terminal and the desktop, and of the rank of a scheduler that the shell itself may be: on another machine, or after the
/// logout, they are wrong. One that ends with `_` stands for all that begin so.
const OF_THE_SESSION: [&str; 36] = [
    "BASH_FUNC_",
    "COLORTERM",
    "COLUMNS",
    "DBUS_",
    "DESKTOP_",
    "DISPLAY",
    "GPG_",
    "HOSTNAME",
    "INVOCATION_ID",
    "JOURNAL_",
    "LINES",
    "LS_COLORS",
    "NOTIFY_",
    "SSH_",
    "STY",
    "SUDO_",
    "SYSTEMD_",
    "TERM",
    "TERM_",
    "TERMCAP",
    "TMUX",
    "TMUX_",
    "VTE_",
    "WAYLAND_",
    "XDG_",
    "FLUX_",
    "MPI_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "SALLOC_",
    "SBATCH_",
    "SLURMD_",
    "SLURM_",
    "SRUN_",
];

/// The variables of this shell that a job gets, in the order of their names, but those that it has been given by name.
pub(super) fn all(shell: impl Iterator<Item = (String, String)>, given: &[EnvVar]) -> Vec<EnvVar> {
    let is_sent = |name: &str| {
        let of_the_shell = OF_THE_SHELL.contains(&name)
            || OF_THE_SESSION
                .iter()
                .any(|known| *known == name || known.ends_with('_') && name.starts_with(known));
        let is_a_name = !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        !of_the_shell
            && is_a_name
            && !is_of_a_launch(name)
            && given.iter().all(|var| var.name != name)
    };
    let mut sent: Vec<EnvVar> = shell
        .filter(|(name, _)| is_sent(name))
        .map(|(name, value)| EnvVar {
            name,
            value,
            value_from: None,
        })
        .collect();
    sent.sort_by(|a, b| a.name.cmp(&b.name));
    sent
}

/// A program that is not Python is started by a torchrun that the `python3` of the job's PATH runs.
pub(super) fn path_to(
    python: &str,
    env: &[EnvVar],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<EnvVar, Failure> {
    if env.iter().any(|var| var.name == "PATH") {
        return Err(Failure::usage(
            "--python with --no-python sets PATH, and --env sets it too: give one of them",
        ));
    }
    let folder = python.strip_suffix("/python3").ok_or_else(|| {
        Failure::usage("--python with --no-python: give the path of a python3, or put its folder in front with --env PATH=...")
    })?;
    let rest = variable("PATH")
        .map(|path| format!(":{path}"))
        .unwrap_or_default();
    Ok(EnvVar {
        value_from: None,
        name: "PATH".into(),
        value: format!("{folder}{rest}"),
    })
}

pub(super) fn read_file(text: &str) -> Result<EnvVar, Failure> {
    let (name, file) = text.split_once('=').ok_or_else(|| {
        Failure::usage(format!(
            "--env-from-file: write {text}=PATH, the path of a file on each node"
        ))
    })?;
    Ok(EnvVar {
        name: name.into(),
        value: String::new(),
        value_from: Some(ValueFrom { file: file.into() }),
    })
}

pub(super) fn read(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<EnvVar, Failure> {
    match text.split_once('=') {
        Some((name, value)) => Ok(EnvVar {
            value_from: None,
            name: name.into(),
            value: value.into(),
        }),
        None => match variable(text) {
            Some(value) => Ok(EnvVar {
                value_from: None,
                name: text.into(),
                value,
            }),
            None => Err(Failure::usage(format!(
                "--env: {text} is not set here; write {text}=VALUE"
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gets_what_was_exported_and_not_what_is_the_shells() {
        let shell = [
            ("PATH", "/opt/cuda/bin:/usr/bin"),
            ("LD_LIBRARY_PATH", "/opt/cuda/lib"),
            ("LOADEDMODULES", "cuda/13:nccl"),
            ("WANDB_MODE", "offline"),
            ("HOME", "/home/a"),
            ("SSH_AUTH_SOCK", "/tmp/x"),
            ("XDG_RUNTIME_DIR", "/run/user/1"),
            ("BASH_FUNC_module%%", "() { x; }"),
            ("PWD", "/tmp"),
            ("_", "/usr/bin/muster"),
            ("RANK", "3"),
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("MUSTER_SERVER", "http://x"),
            ("SLURM_PROCID", "3"),
            // A batch script has the one of its own node.
            ("SLURMD_NODENAME", "n1"),
            ("TERMINATE_AFTER", "3"),
            ("LR", "0.1"),
        ];
        let shell = shell.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = [EnvVar {
            name: "LR".into(),
            value: "0.2".into(),
            value_from: None,
        }];
        let sent = all(shell.into_iter(), &given);
        let names: Vec<&str> = sent.iter().map(|var| var.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "HOME",
                "LD_LIBRARY_PATH",
                "LOADEDMODULES",
                "PATH",
                "TERMINATE_AFTER",
                "WANDB_MODE"
            ]
        );
    }
}
