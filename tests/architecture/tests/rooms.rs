//! The rooms and their allowed dependencies. A dependency outside these tables is an
//! error.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, Package};
use muster_architecture::{Source, expect_none, root, sources, workspace};

/// Our crates, and which of ours each uses in production. A new line, or a new name in a line, is a
/// decision: write it in ARCHITECTURE.md too.
const ROOMS: [(&str, &[&str]); 28] = [
    ("muster-core", &[]),
    // Conversions between wire and core live beside the messages.
    ("muster-proto", &["muster-core"]),
    ("muster-runtime", &[]),
    // It is the only crate that dials and listens.
    ("muster-rpc", &["muster-proto"]),
    ("muster-sealed", &[]),
    ("muster-tcpstore", &[]),
    // What ranks say of where they are.
    ("muster-inspect", &[]),
    // Scripts, and what they may see. An agent runs them, and a drill does.
    ("muster-suite", &[]),
    // What runners look for in logs, and what the command line shows of it.
    ("muster-steps", &[]),
    // Both daemons can make a service of themselves.
    ("muster-service", &[]),
    // Job files of other systems become jobs.
    ("muster-foreign", &["muster-core"]),
    (
        "muster-runner",
        &[
            "muster-inspect",
            "muster-sealed",
            "muster-steps",
            "muster-tcpstore",
        ],
    ),
    (
        "muster-agent",
        &[
            "muster-core",
            "muster-proto",
            "muster-rpc",
            "muster-runner",
            "muster-runtime",
            "muster-sealed",
            "muster-service",
            "muster-steps",
            "muster-suite",
        ],
    ),
    // The way to the engine, and what it has published.
    (
        "muster-handle",
        &["muster-core", "muster-proto", "muster-runtime"],
    ),
    // It knows the engine's handle, and neither the coordinator's API nor its store.
    (
        "muster-operator",
        &[
            "muster-core",
            // Objects of other kinds in a cluster become jobs.
            "muster-foreign",
            "muster-handle",
            "muster-runtime",
        ],
    ),
    (
        "muster-coordinator",
        &[
            "muster-core",
            // The flags name kinds of objects that may be adopted.
            "muster-foreign",
            "muster-handle",
            "muster-operator",
            "muster-proto",
            "muster-rpc",
            "muster-runtime",
            "muster-sealed",
            "muster-service",
        ],
    ),
    // Pages about what the API says.
    ("muster-page", &["muster-proto"]),
    (
        "muster-cli",
        &[
            "muster-core",
            "muster-foreign",
            "muster-page",
            "muster-proto",
            "muster-rpc",
            "muster-runtime",
            "muster-sealed",
            "muster-steps",
        ],
    ),
    ("muster-planted", &[]),
    (
        "muster-world",
        &["muster-core", "muster-planted", "muster-runtime"],
    ),
    ("muster-fake-cuda", &[]),
    ("muster-fake-nvml", &[]),
    // It runs the agent's probes against machines that do not exist.
    (
        "muster-senses",
        &[
            "muster-agent",
            "muster-core",
            "muster-fake-nvml",
            "muster-proto",
            "muster-rpc",
        ],
    ),
    ("muster-architecture", &["muster-suite"]),
    // It runs the agents' real sessions against the real coordinator process.
    (
        "muster-fleetbench",
        &[
            "muster-agent",
            "muster-core",
            "muster-proto",
            "muster-rpc",
            "muster-runtime",
        ],
    ),
    // It times the brain alone.
    ("muster-decidebench", &["muster-core"]),
    // It feeds every decoder with bytes that no program meant to write.
    (
        "muster-damage",
        &[
            "muster-cli",
            "muster-core",
            "muster-foreign",
            "muster-proto",
            "muster-rpc",
            "muster-runner",
            "muster-sealed",
            "muster-tcpstore",
        ],
    ),
    // Drills drive the programs from outside.
    ("muster-drills", &["muster-suite"]),
];

/// Crates that a room must never pull in, directly or through others, and why.
const NEVER: [(&str, &[&str], &str); 8] = [
    (
        "muster-core",
        &[
            "tokio", "tonic", "prost", "tracing", "rustix", "libc", "redb",
        ],
        "decisions are pure: no I/O, clock or log",
    ),
    (
        "muster-foreign",
        &[
            "tokio",
            "tonic",
            "prost",
            "tracing",
            "rustix",
            "libc",
            "kube",
            "k8s-openapi",
        ],
        "a file is read from its text alone, in the command line and in the coordinator",
    ),
    (
        "muster-runner",
        &["tokio", "tonic", "tracing", "prost", "hyper"],
        "the runner is small and outlives every upgrade of the others",
    ),
    (
        "muster-tcpstore",
        &["tokio", "tonic", "serde"],
        "the store is one epoll loop over rustix",
    ),
    (
        "muster-coordinator",
        &[
            "nvml-wrapper",
            "muster-runner",
            "muster-tcpstore",
            "sysinfo",
        ],
        "the coordinator touches no node",
    ),
    (
        "muster-operator",
        &["redb", "muster-rpc", "muster-coordinator"],
        "the operator asks the engine through its handle; it serves nobody and stores nothing",
    ),
    (
        "muster-cli",
        &["nvml-wrapper", "redb", "muster-agent", "muster-coordinator"],
        "the command line speaks gRPC only",
    ),
    (
        "muster-agent",
        &["redb", "muster-coordinator"],
        "an agent has no store of the fleet",
    ),
];

/// Clients of Kubernetes and their own crates.
const KUBERNETES: [&str; 4] = ["kube", "kube-client", "kube-runtime", "k8s-openapi"];

fn ours(metadata: &Metadata) -> BTreeMap<String, &Package> {
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (package.name.to_string(), package))
        .collect()
}

fn uses(package: &Package, kinds: &[DependencyKind]) -> BTreeSet<String> {
    package
        .dependencies
        .iter()
        .filter(|dependency| kinds.contains(&dependency.kind))
        .map(|dependency| dependency.name.clone())
        .collect()
}

#[test]
fn every_crate_has_its_place_in_the_table() {
    let metadata = workspace();
    let known: BTreeSet<String> = ROOMS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let there: BTreeSet<String> = ours(&metadata).into_keys().collect();
    let wrong: Vec<String> = known.symmetric_difference(&there).cloned().collect();
    expect_none(
        &wrong,
        "these are in the workspace or in the table ROOMS, but not in both: decide where the crate stands and write it down",
    );
}

#[test]
fn dependencies_point_one_way() {
    let metadata = workspace();
    let crates = ours(&metadata);
    let mut wrong = Vec::new();
    for (name, allowed) in ROOMS {
        let Some(package) = crates.get(name) else {
            continue;
        };
        let used = uses(package, &[DependencyKind::Normal, DependencyKind::Build]);
        let used: BTreeSet<&str> = used
            .iter()
            .map(String::as_str)
            .filter(|name| crates.contains_key(*name))
            .collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        wrong.extend(
            used.difference(&allowed)
                .map(|other| format!("{name} uses {other}")),
        );
        wrong.extend(
            allowed
                .difference(&used)
                .map(|other| format!("{name} does not use {other} any more")),
        );
    }
    expect_none(
        &wrong,
        "move the code to the room that may use it, or change ROOMS together with ARCHITECTURE.md",
    );
}

/// A test that needs another of our rooms tests both, so it belongs in `tests/`.
#[test]
fn unit_tests_stay_in_their_room() {
    let metadata = workspace();
    let crates = ours(&metadata);
    let development = |package: &&Package| uses(package, &[DependencyKind::Development]);
    let wrong: Vec<String> = crates
        .iter()
        .flat_map(|(name, package)| {
            development(package)
                .into_iter()
                .map(move |other| (name, other))
        })
        .filter(|(_, other)| crates.contains_key(other))
        .map(|(name, other)| format!("the tests of {name} use {other}"))
        .collect();
    expect_none(
        &wrong,
        "put the test into a crate below tests/, which may use both",
    );
}

#[test]
fn core_needs_three_crates() {
    let metadata = workspace();
    let used = uses(
        ours(&metadata)["muster-core"],
        &[DependencyKind::Normal, DependencyKind::Build],
    );
    let wrong: Vec<String> = used
        .into_iter()
        // A step pattern is refused where the spec of its job is checked, and only what compiles it knows its size.
        .filter(|name| !["serde", "thiserror", "regex-lite"].contains(&name.as_str()))
        .collect();
    expect_none(
        &wrong,
        "core is decisions over plain values; what needs more than serde, thiserror and regex-lite is not a decision",
    );
}

#[test]
fn some_things_are_never_pulled_in() {
    let metadata = workspace();
    let resolve = metadata
        .resolve
        .as_ref()
        .expect("cargo metadata resolves unless told not to");
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let names: BTreeMap<_, _> = metadata
        .packages
        .iter()
        .map(|package| (&package.id, package.name.as_str()))
        .collect();
    let mut wrong = Vec::new();
    for (name, never, why) in NEVER {
        let Some(package) = ours(&metadata).get(name).copied() else {
            continue;
        };
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![(&package.id, name.to_owned())]);
        while let Some((id, way)) = waiting.pop() {
            if !seen.insert(id) {
                continue;
            }
            if never.contains(&names[id]) {
                wrong.push(format!("{way}: {why}"));
            }
            let normal = |dep: &&cargo_metadata::NodeDep| {
                dep.dep_kinds
                    .iter()
                    .any(|kind| kind.kind == DependencyKind::Normal)
            };
            waiting.extend(
                nodes[id]
                    .deps
                    .iter()
                    .filter(normal)
                    .map(|dep| (&dep.pkg, format!("{way} -> {}", names[&dep.pkg]))),
            );
        }
    }
    expect_none(
        &wrong,
        "take the dependency out again, or put what needs it where it may be",
    );
}

/// Only the coordinator has rights in a cluster: its store and its questions about callers, and the operator in it.
#[test]
fn only_the_coordinator_and_its_operator_speak_with_an_api_server() {
    let metadata = workspace();
    let all = [
        DependencyKind::Normal,
        DependencyKind::Build,
        DependencyKind::Development,
    ];
    let wrong: Vec<String> = ours(&metadata)
        .into_iter()
        .filter(|(name, package)| {
            !["muster-coordinator", "muster-operator"].contains(&name.as_str())
                && uses(package, &all)
                    .iter()
                    .any(|used| KUBERNETES.contains(&used.as_str()))
        })
        .map(|(name, _)| name)
        .collect();
    expect_none(
        &wrong,
        "agents have no rights in a cluster: let the coordinator read it and tell them",
    );
}

/// What objects ask for is decided from values alone, as in core.
#[test]
fn the_operators_rules_are_pure() {
    const RULES: &str = "operator/src/rules/";
    const MAY: [&str; 5] = ["std", "crate", "super", "muster_core", "muster_foreign"];
    const HIDDEN: [&str; 4] = ["Instant::now", "SystemTime::now", "env::", "fs::"];
    let (mut wrong, mut found) = (Vec::new(), 0);
    let inside = |source: &Source| source.path.starts_with(RULES) && !source.is_test();
    for source in sources().into_iter().filter(inside) {
        for (at, line) in source.production() {
            let used = line.trim_start().strip_prefix("use ");
            let root = used.and_then(|path| path.split("::").next());
            found += usize::from(root.is_some());
            let elsewhere = root.is_some_and(|root| !MAY.contains(&root))
                || line.contains("use crate::") && !line.contains("use crate::rules")
                || HIDDEN.iter().any(|call| line.contains(call));
            if elsewhere {
                wrong.push(format!("{}:{at}: {}", source.path, line.trim()));
            }
        }
    }
    assert!(found >= 8, "only {found} imports were found in {RULES}");
    expect_none(
        &wrong,
        "rules take values; reading objects and clocks is for the file that asks them",
    );
}

#[test]
fn one_tls_and_no_c_library_for_it() {
    let lock =
        std::fs::read_to_string(root().join("Cargo.lock")).expect("the lock file is committed");
    let banned = [
        "aws-lc-rs",
        "aws-lc-sys",
        "openssl",
        "openssl-sys",
        "native-tls",
    ];
    let wrong: Vec<String> = banned
        .into_iter()
        .filter(|name| lock.contains(&format!("name = \"{name}\"\n")))
        .map(str::to_owned)
        .collect();
    expect_none(
        &wrong,
        "TLS is rustls with ring: turn off the default features of whoever brings these",
    );
}

#[test]
fn versions_are_said_once() {
    let metadata = workspace();
    let mut wrong = Vec::new();
    for (name, package) in ours(&metadata) {
        let manifest =
            std::fs::read_to_string(&package.manifest_path).expect("cargo has read it as well");
        let mut section = "";
        for line in manifest.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            } else if section.contains("dependencies")
                && line.contains('=')
                && !line.starts_with('#')
                && !line.contains("workspace")
            {
                wrong.push(format!("{name}: {line}"));
            }
        }
    }
    expect_none(
        &wrong,
        "name the version in [workspace.dependencies] of the root manifest and write `.workspace = true` here",
    );
}

#[test]
fn the_map_shows_every_room() {
    let metadata = workspace();
    let page =
        std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the first page is there");
    let missing = |(name, package): (String, &Package)| {
        let folder = package
            .manifest_path
            .parent()?
            .strip_prefix(root())
            .ok()?
            .to_string();
        (!page.contains(&format!("`{folder}/`")) || !page.contains(&name))
            .then(|| format!("{folder}/ ({name})"))
    };
    let wrong: Vec<String> = ours(&metadata).into_iter().filter_map(missing).collect();
    expect_none(
        &wrong,
        "add the room to the table of ARCHITECTURE.md: what it owns, in one line",
    );
}
