use clap::CommandFactory;

use super::*;

fn check(args: &[&str]) -> Result<Config, WrongFlag> {
    let fixed = [
        "muster-agent",
        "--node-name",
        "n1",
        "--state-dir",
        "state",
        "--runner",
        "/bin/sh",
    ];
    let mut flags = Flags::try_parse_from(fixed).unwrap();
    // A later flag overrides an earlier one.
    flags.update_from(std::iter::once(&"muster-agent").chain(args));
    flags.check()
}

#[test]
fn the_flags_are_well_formed() {
    Flags::command().debug_assert();
}

#[test]
fn workers_run_as_root_only_where_the_operator_says_so() {
    let flags = |more: &[&str]| {
        Flags::try_parse_from(["muster-agent", "--state-dir", "s"].iter().chain(more)).unwrap()
    };
    assert_eq!(flags(&[]).check_user(1000), Ok(()));
    assert_eq!(flags(&["--allow-root-workers"]).check_user(0), Ok(()));
    assert_eq!(
        flags(&["--senses-only"]).check_user(0),
        Ok(()),
        "it has none"
    );
    let refused = flags(&[]).check_user(0).unwrap_err().to_string();
    assert!(
        refused.starts_with("--allow-root-workers: this agent runs as root, and every program"),
        "{refused}"
    );
}

#[test]
fn jobs_run_as_their_owners_only_below_an_agent_of_root() {
    let flags = |more: &[&str]| {
        Flags::try_parse_from(["muster-agent", "--state-dir", "s"].iter().chain(more)).unwrap()
    };
    assert_eq!(flags(&["--run-as-owner"]).check_user(0), Ok(()));
    let refused = flags(&["--run-as-owner"]).check_user(1000).unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("--run-as-owner: only root can"),
        "{refused}"
    );
    let plain = flags(&[]).check_user(0).unwrap_err().to_string();
    assert!(
        plain.contains("--run-as-owner"),
        "it says what else there is: {plain}"
    );

    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let state = state.to_str().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let closed = check(&["--run-as-owner", "--state-dir", state]).unwrap_err();
    assert_eq!(closed.flag, "state-dir");
    assert!(
        closed.message.contains("which other users cannot enter"),
        "{closed}"
    );
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let config = check(&["--run-as-owner", "--state-dir", state]).unwrap();
    assert_eq!(config.users, Users::Owners(None));
    for other in ["--senses-only", "--allow-root-workers", "--pod=/p"] {
        let refused = check(&["--run-as-owner", "--state-dir", state, other]).unwrap_err();
        assert_eq!(refused.flag, "run-as-owner", "{other}");
    }

    let map = dir.path().join("users");
    let map = map.to_str().unwrap();
    fs::write(map, "ann 0:0\n").unwrap();
    let with = |more: &[&str]| check(&[&["--state-dir", state, "--user-map", map], more].concat());
    let unused = with(&[]).unwrap_err().to_string();
    assert_eq!(unused, "--user-map: is only of use with --run-as-owner");
    let root = with(&["--run-as-owner"]).unwrap_err().to_string();
    assert_eq!(
        root,
        format!("--user-map: {map}: line 1: no job runs as root (uid 0)")
    );
    fs::write(map, "ann 1007:1007\n").unwrap();
    assert!(with(&["--run-as-owner"]).unwrap().users.are_owners());
}

#[test]
fn good_flags_make_a_configuration() {
    let config = check(&["--label", "rack=r7", "--label", "x/y=", "--slots", "2"]).unwrap();
    assert_eq!(config.node, NodeName::from("n1"));
    assert!(config.state_dir.is_absolute());
    assert_eq!(config.labels.len(), 2);
    assert_eq!(config.coordinator.to_string(), "http://127.0.0.1:7070");
}

#[test]
fn an_agent_that_only_looks_has_no_slots_and_needs_no_runner() {
    let config = check(&["--senses-only", "--runner", "/nowhere"]).unwrap();
    assert_eq!((config.slots, config.launchers), (0, false));
}

#[test]
fn every_wrong_flag_is_named() {
    let cases: [(&[&str], &str); 26] = [
        (
            &["--probe-every", "1h"],
            "--probe-every: 1h is not between 100ms and 5m",
        ),
        (
            &["--wait-interface", "a/b"],
            "--wait-interface: \"a/b\" is not the name of an interface",
        ),
        (
            &["--wait-peer", "hub:"],
            "--wait-peer: \"hub:\" is not HOST or HOST:PORT",
        ),
        (
            &["--node-name", "Node"],
            "--node-name: \"Node\" has 'N': only lower-case letters, digits and '-' are allowed",
        ),
        (&["--node-name", ""], "--node-name: must not be empty"),
        (
            &["--coordinator", "127.0.0.1:7070"],
            "--coordinator: \"127.0.0.1:7070\" is not a URL like https://train.example.org:7070 or http://127.0.0.1:7070",
        ),
        (
            &["--coordinator", "http://127.0.0.1"],
            "--coordinator: \"http://127.0.0.1\" is not a URL like https://train.example.org:7070 or http://127.0.0.1:7070",
        ),
        (
            &["--coordinator", "ftp://localhost:1"],
            "--coordinator: \"ftp://localhost:1\" is not a URL like https://train.example.org:7070 or http://127.0.0.1:7070",
        ),
        (
            &["--coordinator", "https://localhost:1"],
            "--coordinator: https://localhost:1 speaks TLS, and this node has no certificate; get a token from whoever runs the \
             coordinator, and run MUSTER_TOKEN=... muster-agent join https://localhost:1 --ca-pin PIN and the same --state-dir",
        ),
        (
            &["--coordinator", "http://10.0.0.1:7070"],
            "--coordinator: \"http://10.0.0.1:7070\" is beyond loopback, where only TLS is spoken; use https://",
        ),
        (
            &["--address", "node-1"],
            "--address: \"node-1\" is not an IP address",
        ),
        (
            &["--address", "10.0.0.1"],
            "--address: 10.0.0.1 is beyond loopback, and the coordinator at http://127.0.0.1:7070 serves this machine only",
        ),
        (&["--label", "rack"], "--label: \"rack\" is not KEY=VALUE"),
        (
            &["--label", "=x"],
            "--label: \"=x\" is no label: it has no name",
        ),
        (
            &["--label", "rack-=r7"],
            "--label: \"rack-=r7\" is no label: \"rack-\" may have only letters, digits, '-', '_' and '.', a letter or digit first and last",
        ),
        (
            &["--label", "a=b c"],
            "--label: \"a=b c\" is no label: \"b c\" may have only letters, digits, '-', '_' and '.', a letter or digit first and last",
        ),
        (
            &["--label", "a=1", "--label", "a=2"],
            "--label: \"a\" is given twice",
        ),
        (
            &["--warm-pool", "9"],
            "--warm-pool: is 9, at most 8 are allowed",
        ),
        (
            &["--warm-pool", "1", "--no-launchers"],
            "--warm-pool: keeps launchers, and --no-launchers forbids them",
        ),
        (
            &["--pod-resources", "kubelet.sock"],
            "--pod-resources: kubelet.sock is not an absolute path",
        ),
        (
            &["--own-pod", "team-a/p"],
            "--own-pod: is only of use with --pod-resources",
        ),
        (
            &["--pod-resources", "/kubelet.sock", "--own-pod", "p"],
            "--own-pod: \"p\" is not NAMESPACE/NAME",
        ),
        (
            &["--senses-only", "--pod", "/muster/run"],
            "--senses-only: takes no work, and --pod and --warm-pool are for work",
        ),
        (&["--slots", "33"], "--slots: is 33, at most 32 are allowed"),
        (
            &["--runner", "/nowhere"],
            "--runner: /nowhere: No such file or directory (os error 2)",
        ),
        (
            &["--runner", "/etc/passwd"],
            "--runner: /etc/passwd is not a program",
        ),
    ];
    for (args, error) in cases {
        assert_eq!(check(args).unwrap_err().to_string(), error);
    }
    assert!(check(&["--coordinator", "http://[::1]:7070"]).is_ok());
    assert!(check(&["--coordinator", "http://localhost:7070"]).is_ok());
}
