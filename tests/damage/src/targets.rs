//! The targets, and their first inputs.

mod access;
mod files;
mod jobs;
mod session;
mod tcpstore;

/// One decoder.
pub struct Target {
    pub name: &'static str,
    /// Panics if the decoder breaks its promise.
    pub run: fn(&[u8]),
    /// Well-formed inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Whether the input carries a checksum. Then every second mutation is sealed again, so that it
    /// gets past the checksum.
    pub sealed: bool,
}

const fn target(
    name: &'static str,
    run: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
    sealed: bool,
) -> Target {
    Target {
        name,
        run,
        seeds,
        sealed,
    }
}

/// All targets. `fuzz/fuzz_targets/NAME.rs` is the same one for cargo-fuzz.
pub const ALL: [Target; 16] = [
    target(
        "agent_message",
        session::agent_message,
        session::agent_seeds,
        false,
    ),
    target(
        "coordinator_message",
        session::coordinator_message,
        session::coordinator_seeds,
        false,
    ),
    target(
        "submit_request",
        jobs::submit_request,
        jobs::submit_seeds,
        false,
    ),
    target("job_file", jobs::job_file, jobs::file_seeds, false),
    target(
        "foreign_file",
        jobs::foreign_file,
        jobs::foreign_seeds,
        false,
    ),
    target(
        "store_record",
        jobs::store_record,
        jobs::record_seeds,
        false,
    ),
    target("ledger", files::ledger, files::ledger_seeds, true),
    target("hold", files::hold, files::hold_seeds, true),
    target(
        "runner_record",
        files::runner_record,
        files::runner_seeds,
        true,
    ),
    target("exits", files::exits, files::exits_seeds, false),
    target(
        "pod_question",
        files::pod_question,
        files::question_seeds,
        false,
    ),
    target(
        "runner_request",
        files::runner_request,
        files::request_seeds,
        false,
    ),
    target(
        "runner_reply",
        files::runner_reply,
        files::reply_seeds,
        false,
    ),
    target("access_name", access::names, access::name_seeds, false),
    target(
        "credentials",
        access::credentials,
        access::credentials_seeds,
        false,
    ),
    target("tcpstore", tcpstore::stream, tcpstore::seeds, false),
];

/// Runs the target of this name.
pub fn run(name: &str, input: &[u8]) {
    let target = ALL
        .iter()
        .find(|target| target.name == name)
        .expect("fuzz/fuzz_targets names a target of this list");
    (target.run)(input);
}

/// Reads JSON. What was read must survive being written and read again.
fn json_again<T>(input: &[u8]) -> Option<T>
where
    T: serde::de::DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug,
{
    let value: T = serde_json::from_slice(input).ok()?;
    let text = serde_json::to_vec(&value).expect("what was read can be written");
    let again: T = serde_json::from_slice(&text).expect("what was written can be read");
    assert_eq!(again, value);
    Some(value)
}
