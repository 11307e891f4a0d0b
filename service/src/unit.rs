//! The unit's text: the template, with the path of the program.

use std::path::Path;

use crate::Daemon;

/// The unit that runs this program. `None`: a unit cannot name the path as it is.
pub(crate) fn unit(daemon: Daemon, program: &Path) -> Option<String> {
    let path = program.to_str()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-@:~,=".contains(c);
    if !path.starts_with('/') || !path.chars().all(plain) {
        return None;
    }
    let run = |path: &str| format!("\nExecStart={path}\n");
    let template = daemon.template();
    Some(template.replacen(
        &run(&format!("/usr/local/bin/{}", daemon.name())),
        &run(path),
        1,
    ))
}

/// The program that a unit runs.
pub(crate) fn program(unit: &str) -> Option<&Path> {
    let value = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ExecStart="))
        .next_back()?;
    value.split_whitespace().next().map(Path::new)
}

/// Gives a unit another user, with that user's own group.
pub(crate) fn drop_in(user: &str) -> String {
    match user {
        // Their owners pass through the state directory to their own runs. systemd sets its mode at each start.
        "root" => "# Jobs run as their owners (--run-as-owner).\n[Service]\nUser=root\nGroup=\nStateDirectoryMode=0711\n".into(),
        user => format!("# Jobs run as this user.\n[Service]\nUser={user}\nGroup=\n"),
    }
}

/// The user of such a file.
pub(crate) fn user(drop_in: &str) -> Option<&str> {
    let users = drop_in
        .lines()
        .filter_map(|line| line.strip_prefix("User="));
    users.map(str::trim).rfind(|user| !user.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a unit says, without comments.
    fn said(unit: &str) -> Vec<&str> {
        let comment = |line: &&str| !line.is_empty() && !line.starts_with('#');
        unit.lines().filter(comment).collect()
    }

    #[test]
    fn the_agents_unit_lets_workers_live() {
        let unit = unit(Daemon::Agent, Path::new("/opt/muster/bin/muster-agent")).unwrap();
        assert_eq!(
            said(&unit),
            [
                "[Unit]",
                "Description=Muster agent",
                "Wants=network-online.target",
                "After=network-online.target remote-fs.target nvidia-persistenced.service",
                "StartLimitIntervalSec=0",
                "[Service]",
                "Type=notify",
                "NotifyAccess=main",
                "WatchdogSec=120",
                "TimeoutStartSec=infinity",
                "WatchdogSignal=SIGKILL",
                "ExecStart=/opt/muster/bin/muster-agent",
                "Environment=MUSTER_STATE_DIR=/var/lib/muster-agent",
                "EnvironmentFile=-/etc/muster/agent.env",
                "User=muster",
                "Group=muster",
                "StateDirectory=muster-agent",
                "StateDirectoryMode=0700",
                "KillMode=process",
                "Delegate=yes",
                "OOMPolicy=continue",
                "Restart=on-failure",
                "RestartSec=2",
                "TimeoutStopSec=30",
                "LimitMEMLOCK=infinity",
                "LimitNOFILE=65536:524288",
                "TasksMax=infinity",
                "[Install]",
                "WantedBy=multi-user.target",
            ]
        );
    }

    #[test]
    fn units_and_users_are_those_of_the_service() {
        for daemon in [Daemon::Agent, Daemon::Coordinator] {
            let name = daemon.name();
            let unit = unit(daemon, Path::new("/usr/bin").join(name).as_path()).unwrap();
            let (user, state) = (daemon.user(), daemon.state_dir().display());
            for line in [
                format!("ExecStart=/usr/bin/{name}"),
                format!("User={user}"),
                format!("Group={user}"),
                format!("StateDirectory={name}"),
                format!("Environment=MUSTER_STATE_DIR={state}"),
                format!("EnvironmentFile=-{}", daemon.settings().display()),
            ] {
                assert!(said(&unit).contains(&line.as_str()), "{name}: {line}");
            }
            assert_eq!(
                program(&unit),
                Some(Path::new("/usr/bin").join(name).as_path())
            );
            let line = daemon.sysusers().lines().last().unwrap();
            assert!(line.starts_with(&format!("u {user} - ")), "{line}");
            assert!(line.ends_with(&format!(" {state}")), "{line}");
        }
    }

    #[test]
    fn a_path_that_a_unit_would_read_otherwise_is_no_path() {
        for path in [
            "relative/muster-agent",
            "/a b/muster-agent",
            "/a%h/muster-agent",
            "/a\"/m",
            "/$A/m",
        ] {
            assert_eq!(unit(Daemon::Agent, Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn a_drop_in_tells_its_user() {
        assert_eq!(user(&drop_in("ann")), Some("ann"));
        assert_eq!(user(&drop_in("root")), Some("root"));
        assert_eq!(user("[Service]\nNice=5\n"), None);
    }
}
