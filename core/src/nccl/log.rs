//! NCCL's log of its own initialization, from which the runner reads what a communicator took.
//!
//! It costs some 3 KiB of text for each communicator and nothing afterwards. It goes to a file in the
//! run's directory, so nothing that the job prints changes.

/// Variables with this beginning say what NCCL logs, and where.
const NAMES: &str = "NCCL_DEBUG";

/// The variables for that log. None, if somebody has said what NCCL is to log, in whichever part: then what
/// they get is as they said. `%p` is NCCL's word for the pid.
pub fn variables<'a>(
    run_dir: &str,
    mut given: impl Iterator<Item = &'a str>,
) -> Option<[(&'static str, String); 3]> {
    // NCCL would replace a word with a percent sign.
    if given.any(|name| name.starts_with(NAMES)) || run_dir.contains('%') {
        return None;
    }
    Some([
        ("NCCL_DEBUG", "INFO".into()),
        ("NCCL_DEBUG_SUBSYS", "INIT".into()),
        ("NCCL_DEBUG_FILE", format!("{run_dir}/nccl-%p")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_says_what_nccl_logs_gets_that_and_no_more() {
        let given = |name: &'static str| variables("/r/u-g1", [name].into_iter());
        let own = given("NCCL_SOCKET_IFNAME").expect("nobody has said it");
        assert_eq!(own[2], ("NCCL_DEBUG_FILE", "/r/u-g1/nccl-%p".into()));
        for name in ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"] {
            assert_eq!(given(name), None, "{name}");
        }
        assert_eq!(variables("/r%h/u-g1", std::iter::empty()), None);
    }
}
