//! How our sources look (STYLE.md), as far as a program can tell.

use muster_architecture::{Source, expect_none, sources};

/// From this length on a file probably has a second concept.
const LINES_MAX: usize = 600;
/// Longer files, and how long each may be. These numbers only fall. A file that was split leaves
/// the list, and no file joins it.
const LONG: [(&str, usize); 6] = [
    ("agent/tcpstore/src/table/tests.rs", 775),
    ("cli/tests/requests.rs", 719),
    ("core/src/fleet/tests/regressions.rs", 646),
    ("core/src/node/turn/tests.rs", 893),
    ("tests/senses/tests/faults.rs", 690),
    ("tests/world/src/agent.rs", 623),
];

/// Where the coordinator's process has its code.
const CENTRAL: [&str; 3] = ["coordinator/src/", "handle/src/", "operator/src/"];

/// Names that say nothing.
const BANNED: [&str; 7] = [
    "manager", "helper", "util", "info", "data", "misc", "common",
];

fn place(source: &Source, line: usize) -> String {
    format!("{}:{line}", source.path)
}

#[test]
fn production_code_never_unwraps() {
    let mut wrong = Vec::new();
    for source in sources() {
        wrong.extend(
            source
                .production()
                .iter()
                .filter(|(_, line)| line.contains(".unwrap()"))
                .map(|(at, _)| place(&source, *at)),
        );
    }
    expect_none(
        &wrong,
        "say why it holds with `expect(\"...\")`, or return the error",
    );
}

#[test]
fn files_hold_one_concept() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        let allowed = LONG
            .iter()
            .find(|(path, _)| *path == source.path)
            .map(|(_, allowed)| *allowed);
        match allowed {
            None if lines > LINES_MAX => wrong.push(format!(
                "{} has {lines} lines, at most {LINES_MAX} are meant",
                source.path
            )),
            Some(allowed) if lines > allowed => wrong.push(format!(
                "{} has grown to {lines} lines, {allowed} were allowed",
                source.path
            )),
            Some(_) if lines <= LINES_MAX => wrong.push(format!(
                "{} is short again: take it off the list LONG",
                source.path
            )),
            _ => {}
        }
    }
    let paths: Vec<String> = sources().into_iter().map(|source| source.path).collect();
    wrong.extend(
        LONG.iter()
            .filter(|(path, _)| !paths.iter().any(|there| there == path))
            .map(|(path, _)| format!("{path} is gone: take it off the list LONG")),
    );
    expect_none(
        &wrong,
        "look for the second concept in the file and give it a file of its own",
    );
}

#[test]
fn names_say_something() {
    let mut wrong = Vec::new();
    for source in sources() {
        let stem = source
            .path
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".rs");
        if words(stem)
            .iter()
            .any(|word| BANNED.contains(&word.as_str()))
        {
            wrong.push(source.path.clone());
        }
        for (at, line) in source.production().into_iter().chain(source.tests()) {
            if let Some(name) = declared(line)
                && words(name)
                    .iter()
                    .any(|word| BANNED.contains(&word.as_str()))
            {
                wrong.push(format!("{} {name}", place(&source, at)));
            }
        }
    }
    expect_none(
        &wrong,
        &format!(
            "call it by what it is; banned in names: {}",
            BANNED.join(", ")
        ),
    );
}

/// The type or module that a line declares, if any. An indented `type` belongs to a foreign trait.
fn declared(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| {
        matches!(
            *word,
            "struct" | "enum" | "trait" | "mod" | "union" | "type"
        )
    })?;
    let leading = words[..at]
        .iter()
        .all(|word| word.starts_with("pub") || *word == "unsafe");
    let foreign = words[at] == "type" && line.starts_with(' ');
    let name = words
        .get(at + 1)?
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    (leading && !foreign && !name.is_empty()).then_some(name)
}

/// `FileTable` and `file_table` are both two words.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c == '-' || c.is_uppercase() {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words
                .last_mut()
                .expect("it starts with one")
                .extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn modules_introduce_themselves() {
    // A file of unit tests is introduced by what it tests, and by its name.
    let wrong: Vec<String> = sources()
        .into_iter()
        .filter(|source| !source.path.ends_with("/tests.rs") && !source.text.starts_with("//!"))
        .map(|source| source.path)
        .collect();
    expect_none(
        &wrong,
        "begin the file with a few sentences (//!): what it owns, what it never does",
    );
}

#[test]
fn tests_never_sleep() {
    let mut wrong = Vec::new();
    for source in sources() {
        // On a paused clock a sleep takes no time. Python's sleeps are in workers that must be
        // busy.
        let paused = source.text.contains("start_paused = true");
        let sleeps =
            |line: &str| line.contains("sleep(") && !line.contains("time.sleep(") && !paused;
        wrong.extend(
            source
                .tests()
                .iter()
                .filter(|(_, line)| sleeps(line))
                .map(|(at, _)| place(&source, *at)),
        );
    }
    wrong.retain(|place| !place.starts_with("tests/architecture/"));
    expect_none(
        &wrong,
        "wait for the state, with a deadline, not for time to pass",
    );
}

/// Finds `token` where it is not the end of a longer name, and returns what follows it.
fn mentions<'a>(line: &'a str, token: &str) -> Option<&'a str> {
    line.match_indices(token).find_map(|(at, _)| {
        let before = line[..at].chars().next_back();
        let whole = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        whole.then(|| &line[at + token.len()..])
    })
}

#[test]
fn agent_and_coordinator_do_not_read_each_others_minds() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.production().into_iter().chain(source.tests());
        for (at, line) in lines {
            let bad = match source.path.as_str() {
                path if path.starts_with("agent/src/") => mentions(line, "fleet::").is_some(),
                path if CENTRAL.iter().any(|room| path.starts_with(room)) => {
                    mentions(line, "node::").is_some()
                }
                path if path.starts_with("core/src/node") => mentions(line, "fleet").is_some(),
                path if path.starts_with("core/src/fleet") => {
                    mentions(line, "crate::node::").is_some()
                }
                _ => false,
            };
            if bad {
                wrong.push(format!("{}: {}", place(&source, at), line.trim()));
            }
        }
    }
    expect_none(
        &wrong,
        "what both need is vocabulary and belongs beside `run` in core; what one needs stays with it",
    );
}

#[test]
fn the_coordinator_starts_no_process() {
    let mut wrong = Vec::new();
    for source in sources()
        .into_iter()
        .filter(|source| CENTRAL.iter().any(|room| source.path.starts_with(room)))
    {
        let process = |line: &str| {
            ["process::Command", "kill_process", "pidfd", "nvml"]
                .iter()
                .any(|bad| line.contains(bad))
        };
        wrong.extend(
            source
                .production()
                .iter()
                .filter(|(_, line)| process(line))
                .map(|(at, _)| place(&source, *at)),
        );
    }
    expect_none(
        &wrong,
        "processes and GPUs are the agents' business: say what shall be, and let them do it",
    );
}

/// TLS has one place on each side, as long as no other crate opens a connection or port of gRPC by
/// hand. Tests that listen for something else, or that forward bytes, may do so.
#[test]
fn one_room_dials_and_listens() {
    const BY_HAND: [&str; 4] = [
        "transport::",
        "ServiceClient::connect(",
        "Server::builder(",
        "serve_with_incoming",
    ];
    let is_import = |line: &str| line.trim_start().starts_with("transport::");
    let mut wrong = Vec::new();
    for source in sources() {
        // The last two stand in for a kubelet and for a device plugin, which listen on Unix sockets.
        let exempt = [
            "rpc/",
            "tests/architecture/",
            "tests/senses/src/kubelet.rs",
            "tests/senses/src/plugin.rs",
        ];
        if exempt.iter().any(|room| source.path.starts_with(room)) {
            continue;
        }
        let tonic = source.text.contains("tonic");
        let by_hand = |line: &str| {
            tonic && (is_import(line) || BY_HAND.iter().any(|bad| mentions(line, bad).is_some()))
        };
        let listens = |line: &str| {
            let daemon = ["agent/src/", "coordinator/", "cli/"];
            line.contains("TcpListener") && daemon.iter().any(|room| source.path.starts_with(room))
        };
        let production = source.production();
        wrong.extend(
            (production
                .iter()
                .filter(|(_, line)| by_hand(line) || listens(line)))
            .chain(source.tests().iter().filter(|(_, line)| by_hand(line)))
            .map(|(at, line)| format!("{}: {}", place(&source, *at), line.trim())),
        );
    }
    expect_none(
        &wrong,
        "dial with muster_rpc::dial and listen with muster_rpc::listen: TLS is loaded there",
    );
}

#[test]
fn unsafe_code_has_one_place() {
    // The places: system calls of the runner, adjtimex, calls into libnvidia-ml, and the libraries
    // that stand in for it and for libcuda. Two tests stop a thread of the agent by ptrace, as a disk that hangs would.
    const PLACES: [&str; 6] = [
        "agent/tests/agent/slow_disk.rs",
        "agent/runner/src/bin/muster-runner/sys.rs",
        "agent/src/probe/kernel_clock.rs",
        "agent/src/probe/nvml/raw.rs",
        "tests/fake-cuda/src/lib.rs",
        "tests/fake-nvml/src/abi.rs",
    ];
    let wrong: Vec<String> = sources()
        .into_iter()
        .filter(|source| {
            (source.text.contains("allow(unsafe_code") || source.text.contains("    unsafe_code,"))
                && !PLACES.contains(&source.path.as_str())
                && !source.path.starts_with("tests/architecture/")
        })
        .map(|source| source.path)
        .collect();
    expect_none(
        &wrong,
        &format!("what needs unsafe belongs to one of {PLACES:?}"),
    );
}
