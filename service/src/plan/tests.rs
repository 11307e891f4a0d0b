use super::*;
use crate::{Owned, Running, UnitState, settings};

const PROGRAM: &str = "/usr/local/bin/muster-agent";

fn setting(name: &str, value: &str) -> Setting {
    Setting {
        name: name.into(),
        value: value.into(),
    }
}

fn wanted(settings: &[(&str, &str)]) -> Wanted {
    Wanted {
        daemon: Daemon::Agent,
        program: PROGRAM.into(),
        run_as: None,
        settings: settings.iter().map(|(a, b)| setting(a, b)).collect(),
        enrolment: vec!["join".into(), "https://a:7070".into()],
    }
}

/// A machine with systemd and nothing of ours.
fn bare() -> Found {
    Found {
        unit: Some(UnitState::default()),
        ..Found::default()
    }
}

/// What is there after these steps.
fn after(steps: &[Step], mut found: Found) -> Found {
    let agent = User { uid: 901, gid: 901 };
    for step in steps {
        match step {
            Step::Write { path, text, .. } => drop(found.files.insert(path.clone(), text.clone())),
            Step::SetAside(path) | Step::RemoveFile(path) => drop(found.files.remove(path)),
            Step::MakeUser { .. } => found.user = Some(agent.clone()),
            Step::Folder { .. } => {
                let uid = found.user.as_ref().map_or(901, |user| user.uid);
                found.state_dir = Some(Owned {
                    uid,
                    mode: 0o700,
                    is_empty: false,
                });
            }
            Step::Enrol { .. } => found.is_enrolled = true,
            Step::Enable(_) => found.is_enabled = true,
            Step::Reload => found.unit.as_mut().unwrap().needs_reload = false,
            Step::Start(daemon) | Step::Restart(daemon, _) => {
                let text = found.files.get(daemon.settings()).map(String::as_str);
                let unit = found.unit.as_mut().unwrap();
                unit.is_active = true;
                unit.running = Some(Running {
                    environment: settings::read(text.unwrap_or_default()),
                    is_current: true,
                });
            }
            Step::Check { .. } => {}
            Step::Stop(_) | Step::Kill(_) | Step::Disable(_) | Step::RemoveFolder(_) => {
                panic!("an installation does not {step}")
            }
        }
    }
    found
}

fn planned(wanted: &Wanted, found: &Found) -> Vec<String> {
    let steps = install(wanted, found).unwrap();
    steps.iter().map(Step::to_string).collect()
}

#[test]
fn a_bare_machine_gets_everything_once() {
    let wanted = wanted(&[("MUSTER_SLOTS", "2")]);
    let steps = install(&wanted, &bare()).unwrap();
    assert_eq!(
        steps.iter().map(Step::to_string).collect::<Vec<_>>(),
        [
            "write /etc/sysusers.d/muster-agent.conf",
            "make user muster: systemd-sysusers /etc/sysusers.d/muster-agent.conf",
            "folder /var/lib/muster-agent: owner muster, mode 0700",
            "as muster: join https://a:7070",
            "as muster: check the settings",
            "write /etc/muster/agent.env",
            "write /etc/systemd/system/muster-agent.service",
            "systemctl daemon-reload",
            "systemctl enable muster-agent.service",
            "systemctl start muster-agent.service",
        ]
    );
    let found = after(&steps, bare());
    assert_eq!(install(&wanted, &found), Ok(vec![]));
    // Nor does less than was given before take anything back.
    let less = Wanted {
        settings: vec![],
        ..wanted
    };
    assert_eq!(install(&less, &found), Ok(vec![]));
}

#[test]
fn a_changed_setting_is_checked_written_and_applied() {
    let two = wanted(&[("MUSTER_SLOTS", "2")]);
    let mut found = after(&install(&two, &bare()).unwrap(), bare());
    let by_hand = "MUSTER_SLOTS=2\n# By hand\nMUSTER_LABELS=rack=r7\n";
    found
        .files
        .insert("/etc/muster/agent.env".into(), by_hand.into());
    let four = wanted(&[("MUSTER_SLOTS", "4")]);
    let steps = install(&four, &found).unwrap();
    let text = "MUSTER_SLOTS=4\n# By hand\nMUSTER_LABELS=rack=r7\n";
    let because = Because::Setting {
        name: "MUSTER_SLOTS".into(),
        runs_with: Some("2".into()),
    };
    assert_eq!(
        steps,
        [
            Step::Check {
                user: "muster".into(),
                settings: vec![
                    setting("MUSTER_LABELS", "rack=r7"),
                    setting("MUSTER_SLOTS", "4")
                ],
            },
            Step::Write {
                path: "/etc/muster/agent.env".into(),
                text: text.into(),
                was: Some(by_hand.into()),
            },
            Step::Restart(Daemon::Agent, vec![because]),
        ]
    );
    // A command that died between the two goes on where it was.
    let written = after(&steps[..2], found.clone());
    assert_eq!(
        install(&four, &written).unwrap(),
        [steps[0].clone(), steps[2].clone()]
    );
    assert_eq!(install(&four, &after(&steps, found)), Ok(vec![]));
}

#[test]
fn what_runs_is_started_again_only_for_a_reason() {
    let wanted = wanted(&[]);
    let running = after(&install(&wanted, &bare()).unwrap(), bare());
    let changed = |change: &dyn Fn(&mut Found)| {
        let mut found = running.clone();
        change(&mut found);
        planned(&wanted, &found)
    };
    let unit =
        |found: &mut Found, change: &dyn Fn(&mut UnitState)| change(found.unit.as_mut().unwrap());
    let restart = |because: &str| {
        format!("systemctl restart muster-agent.service ({because}); workers go on")
    };
    let check = "as muster: check the settings".to_owned();
    assert_eq!(
        changed(
            &|it| unit(it, &|unit| unit.running.as_mut().unwrap().is_current =
                false)
        ),
        [check.clone(), restart("its program has been replaced")]
    );
    assert_eq!(
        changed(&|it| unit(it, &|unit| unit.needs_reload = true)),
        [
            check.clone(),
            "systemctl daemon-reload".into(),
            restart("its unit has changed")
        ]
    );
    let edited = changed(&|it| {
        drop(
            it.files
                .insert(Daemon::Agent.unit_path(), "[Service]\n".into()),
        )
    });
    assert_eq!(
        edited,
        [
            check.clone(),
            "change /etc/systemd/system/muster-agent.service (as it was: /etc/systemd/system/muster-agent.service.old)".into(),
            "systemctl daemon-reload".into(),
            restart("its unit has changed"),
        ]
    );
    assert_eq!(
        changed(&|it| unit(it, &|unit| unit.is_active = false)),
        [check, "systemctl start muster-agent.service".into()]
    );
    assert_eq!(
        changed(&|it| it.is_enabled = false),
        ["systemctl enable muster-agent.service"]
    );
}

#[test]
fn a_package_keeps_its_unit() {
    let [packaged, _] = Daemon::Agent.packaged_units();
    let text = unit(Daemon::Agent, Path::new("/usr/bin/muster-agent")).unwrap();
    let mut found = bare();
    found.files.insert(packaged.clone(), text);
    let local = wanted(&[]);
    assert_eq!(
        install(&local, &found),
        Err(Refusal::OtherProgram {
            unit: packaged,
            program: "/usr/bin/muster-agent".into()
        })
    );
    let wanted = Wanted {
        program: "/usr/bin/muster-agent".into(),
        ..local
    };
    let steps = planned(&wanted, &found);
    assert!(
        !steps.iter().any(|step| step.contains("systemd/system/")),
        "{steps:?}"
    );
    // One that was copied before there was a package hides the package's.
    found
        .files
        .insert(Daemon::Agent.unit_path(), "[Service]\n".into());
    let steps = planned(&wanted, &found);
    let aside = "rename /etc/systemd/system/muster-agent.service to /etc/systemd/system/muster-agent.service.old";
    assert!(steps.iter().any(|step| step == aside), "{steps:?}");
}

#[test]
fn jobs_may_run_as_a_user_that_is_there() {
    let ann = Wanted {
        run_as: Some("ann".into()),
        ..wanted(&[])
    };
    assert_eq!(install(&ann, &bare()), Err(Refusal::NoUser("ann".into())));
    let mut found = bare();
    found.user = Some(User {
        uid: 1000,
        gid: 100,
    });
    let steps = install(&ann, &found).unwrap();
    let told: Vec<String> = steps.iter().map(Step::to_string).collect();
    assert_eq!(
        told[0],
        "folder /var/lib/muster-agent: owner ann, mode 0700"
    );
    assert!(
        told.contains(&"write /etc/systemd/system/muster-agent.service.d/user.conf".into()),
        "{told:?}"
    );
    let found = after(&steps, found);
    assert_eq!(install(&ann, &found), Ok(vec![]));
    // The name need not be given again.
    assert_eq!(install(&wanted(&[]), &found), Ok(vec![]));
    // Back to the service's own user: the state is still ann's.
    let back = Wanted {
        run_as: Some("muster".into()),
        ..wanted(&[])
    };
    let own = Found {
        user: Some(User { uid: 901, gid: 901 }),
        ..found
    };
    assert!(matches!(
        install(&back, &own),
        Err(Refusal::StateOwner { uid: 1000, .. })
    ));
}

#[test]
fn an_agent_is_root_only_where_jobs_run_as_their_owners() {
    let root = |settings: &[(&str, &str)]| Wanted {
        run_as: Some("root".into()),
        ..wanted(settings)
    };
    let mut found = bare();
    found.user = Some(User { uid: 0, gid: 0 });
    assert_eq!(
        install(&root(&[]), &found),
        Err(Refusal::Root("root".into()))
    );
    let off = root(&[("MUSTER_RUN_AS_OWNER", "false")]);
    assert!(install(&off, &found).is_err());
    let steps = install(&root(&[("MUSTER_RUN_AS_OWNER", "true")]), &found).unwrap();
    let drop_in = steps.iter().find_map(|step| match step {
        Step::Write { path, text, .. } if path.ends_with("user.conf") => Some(text.as_str()),
        _ => None,
    });
    // The agent opens it so far, and systemd must not close it again at the next start.
    assert!(
        drop_in
            .unwrap()
            .contains("User=root\nGroup=\nStateDirectoryMode=0711\n")
    );
    let mut found = after(&steps, found);
    found.state_dir.as_mut().unwrap().mode = 0o40711;
    assert_eq!(
        install(&wanted(&[]), &found),
        Ok(vec![]),
        "given again it does nothing"
    );
}

#[test]
fn a_state_directory_is_never_taken_from_somebody() {
    let of = |owned| Found {
        user: Some(User { uid: 901, gid: 901 }),
        state_dir: Some(owned),
        ..bare()
    };
    let (root, mine) = (0, 901);
    let folder = "folder /var/lib/muster-agent: owner muster, mode 0700";
    let makes = |uid, mode, is_empty| {
        let steps = planned(
            &wanted(&[]),
            &of(Owned {
                uid,
                mode,
                is_empty,
            }),
        );
        steps.contains(&folder.to_owned())
    };
    assert!(makes(root, 0o755, true), "a disk that was just mounted");
    assert!(makes(mine, 0o755, false));
    assert!(!makes(mine, 0o700, false));
    for (uid, is_empty) in [(root, false), (1000, true), (1000, false)] {
        let found = of(Owned {
            uid,
            mode: 0o700,
            is_empty,
        });
        let why = install(&wanted(&[]), &found).unwrap_err().to_string();
        assert!(
            why.contains("chown -R muster: /var/lib/muster-agent"),
            "{why}"
        );
    }
}

#[test]
fn in_another_root_nothing_is_started() {
    let image = Wanted {
        enrolment: vec![],
        ..wanted(&[])
    };
    let steps = planned(&image, &Found::default());
    assert_eq!(
        steps,
        [
            "write /etc/sysusers.d/muster-agent.conf",
            "make user muster: systemd-sysusers /etc/sysusers.d/muster-agent.conf",
            "folder /var/lib/muster-agent: owner muster, mode 0700",
            "write /etc/systemd/system/muster-agent.service",
        ],
        "an agent that has not joined would look for a coordinator on its own machine"
    );
    let steps = planned(&wanted(&[]), &Found::default());
    assert_eq!(
        steps.last().unwrap(),
        "systemctl enable muster-agent.service"
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let root = Found {
        user: Some(User { uid: 0, gid: 0 }),
        ..bare()
    };
    assert_eq!(
        install(&wanted(&[]), &root),
        Err(Refusal::Root("muster".into()))
    );
    let spaced = Wanted {
        program: "/opt/my tools/muster-agent".into(),
        ..wanted(&[])
    };
    let why = install(&spaced, &bare()).unwrap_err().to_string();
    assert!(why.contains("copy the programs to /usr/local/bin"), "{why}");
    let at_home = |daemon| Wanted {
        daemon,
        program: "/home/ann/venv/bin/muster-coordinator".into(),
        ..wanted(&[])
    };
    assert!(matches!(
        install(&at_home(Daemon::Coordinator), &bare()),
        Err(Refusal::Hidden(_))
    ));
    assert!(install(&at_home(Daemon::Agent), &bare()).is_ok());
}
