//! Finds the line that says why a rank failed, in the last lines of its stderr.
//!
//! It takes the last line that looks like a Python exception, else a crash message of the C library
//! or the interpreter, else what MPI's programs and Muster's own say of another process. Python prints the outermost exception of a chain last, and a user sees that
//! one first.

/// The reason, without torch's prefix `[rank0]:`, or none.
pub(crate) fn first_error(lines: &[String]) -> Option<String> {
    let bare = || lines.iter().rev().map(|line| without_rank(line));
    bare()
        .find(|line| is_exception(line))
        .or_else(|| bare().find(|line| is_crash(line)))
        .or_else(|| bare().find(|line| is_of_mpi(line)))
        .map(str::to_owned)
}

/// torch's excepthook writes `[rank3]: ` in front of every line.
fn without_rank(line: &str) -> &str {
    line.strip_prefix("[rank")
        .and_then(|rest| rest.split_once("]:"))
        .filter(|(rank, _)| rank.bytes().all(|b| b.is_ascii_digit()))
        .map_or(line, |(_, text)| text.strip_prefix(' ').unwrap_or(text))
}

/// Accepts `package.SomeError: text`, `SomeError`, `KeyboardInterrupt`: a dotted name whose last
/// part ends like an exception's, then a colon or nothing. Lines of a traceback are indented, so
/// they are no such names.
fn is_exception(line: &str) -> bool {
    let name = line
        .split_once(": ")
        .map_or(line.strip_suffix(':').unwrap_or(line), |(name, _)| name);
    let parts_are_names = name.split('.').all(|part| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    let last = name.rsplit('.').next().unwrap_or(name);
    parts_are_names
        && [
            "Error",
            "Exception",
            "Interrupt",
            "SystemExit",
            "Timeout",
            "Expired",
            "Failure",
        ]
        .iter()
        .any(|end| last.ends_with(end))
}

fn is_crash(line: &str) -> bool {
    [
        "Fatal Python error",
        "Segmentation fault",
        "Bus error",
        "Aborted",
        "terminate called",
        "double free",
        "Killed",
    ]
    .iter()
    .any(|start| line.starts_with(start))
}

/// What a member of an MPI job says of the others: `muster-lend`, `muster-rsh`, and Open MPI's `mpirun`.
fn is_of_mpi(line: &str) -> bool {
    let of_lender = [
        "muster-lend: MPI rank ",
        "muster-lend: Open MPI rank ",
        "muster-lend: the daemon above",
        "muster-lend: the launcher's connection broke",
    ];
    let of_launcher = [
        "noticed that process rank",
        "has lost communication with a remote daemon",
    ];
    let gone = line.starts_with("muster-rsh: ") && line.contains(" is gone: ");
    gone || of_lender.iter().any(|words| line.starts_with(words))
        || of_launcher.iter().any(|words| line.contains(words))
}

#[cfg(test)]
mod tests {
    use super::first_error;

    #[test]
    fn the_reason_in_the_tail() {
        let cases: [(&[&str], Option<&str>); 12] = [
            (
                &[
                    "Traceback (most recent call last):",
                    "  File \"x\"",
                    "ValueError: bad",
                ],
                Some("ValueError: bad"),
            ),
            (
                &["[rank0]: torch.OutOfMemoryError: CUDA out of memory."],
                Some("torch.OutOfMemoryError: CUDA out of memory."),
            ),
            (
                &[
                    "KeyError: 1",
                    "During handling of",
                    "RuntimeError: two",
                    "done",
                ],
                Some("RuntimeError: two"),
            ),
            (&["AssertionError"], Some("AssertionError")),
            (&["KeyboardInterrupt"], Some("KeyboardInterrupt")),
            (
                &[
                    "Fatal Python error: Segmentation fault",
                    "",
                    "Current thread 0x1:",
                ],
                Some("Fatal Python error: Segmentation fault"),
            ),
            (
                &["Segmentation fault (core dumped)"],
                Some("Segmentation fault (core dumped)"),
            ),
            (
                &["ValueError: x", "Segmentation fault"],
                Some("ValueError: x"),
            ),
            (&["    raise ValueError: x", "see Error: y z"], None),
            (
                &["muster-rsh: pi-worker-0 is gone: it does not answer", "x"],
                Some("muster-rsh: pi-worker-0 is gone: it does not answer"),
            ),
            (&["warning: 3 Errors"], None),
            (&[], None),
        ];
        for (lines, reason) in cases {
            let lines: Vec<String> = lines.iter().map(|l| (*l).to_owned()).collect();
            assert_eq!(first_error(&lines).as_deref(), reason, "{lines:?}");
        }
    }
}
