//! Functions are short enough to be read at once.

use muster_architecture::{Source, expect_none, sources};

/// From this length on a function has a part with a name of its own.
const LINES_MAX: usize = 100;

/// Longer functions. The list only shrinks: a function that was cut leaves it, and none joins it. `core/` has none.
const LONG: [(&str, &str); 16] = [
    ("agent/src/config.rs", "check"),
    ("cli/src/commands/run.rs", "document"),
    ("cli/src/output/describe.rs", "job"),
    ("cli/src/output/describe.rs", "node"),
    ("cli/src/output/hardware.rs", "topology"),
    ("coordinator/src/main.rs", "run"),
    ("coordinator/src/serve.rs", "start"),
    ("foreign/src/documents.rs", "read"),
    ("foreign/src/draft.rs", "finish"),
    ("foreign/src/framework_draft.rs", "finish"),
    ("foreign/src/kinds/mpi_job.rs", "read"),
    ("foreign/src/kinds/pytorch_job.rs", "read"),
    ("foreign/src/kinds/train_job/runtime.rs", "read"),
    ("foreign/src/launch.rs", "with_flags"),
    (
        "proto/src/convert/session/desired.rs",
        "assignment_from_wire",
    ),
    ("proto/src/convert/session/run_report.rs", "run_from_wire"),
];

/// The functions of a file: name, first line, and how many lines each has.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let lines = source.production();
    let mut found = Vec::new();
    for (at, (first, line)) in lines.iter().enumerate() {
        let Some((before, rest)) = line.split_once("fn ") else {
            continue;
        };
        let leads = |word: &str| {
            word.starts_with("pub")
                || word.ends_with(')')
                || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
        };
        let name: String = { rest.chars() }
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if name.is_empty() || !before.split_whitespace().all(leads) {
            continue;
        }
        if line.ends_with('}') {
            continue;
        }
        let body = &lines[at..];
        // A method that a trait only declares has no body.
        let opens = body.iter().position(|(_, line)| line.ends_with('{'));
        let ends = body.iter().position(|(_, line)| line.ends_with(';'));
        if opens.is_none_or(|opens| ends.is_some_and(|ends| ends < opens)) {
            continue;
        }
        let indent: String = before.chars().take_while(|c| *c == ' ').collect();
        let closing = format!("{indent}}}");
        if let Some((last, _)) = body.iter().find(|(_, line)| *line == closing) {
            found.push((name, *first, last - first + 1));
        }
    }
    found
}

#[test]
fn functions_are_read_at_once() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    let mut listed = LONG.to_vec();
    // What only tests and measures is no product.
    let is_product = |source: &Source| {
        !["tests/", "bench/"]
            .iter()
            .any(|room| source.path.starts_with(room))
    };
    for source in sources().into_iter().filter(is_product) {
        for (name, at, lines) in functions(&source) {
            count += 1;
            if lines <= LINES_MAX {
                continue;
            }
            match listed
                .iter()
                .position(|one| *one == (&*source.path, &*name))
            {
                Some(known) => drop(listed.swap_remove(known)),
                None => wrong.push(format!(
                    "{}:{at}: {name} has {lines} lines, at most {LINES_MAX} are meant",
                    source.path
                )),
            }
        }
    }
    wrong.extend({ listed.iter() }.map(|(path, name)| {
        format!("{path}: {name} is not that long any more: take it off the list LONG")
    }));
    assert!(count > 5_000, "only {count} functions were found");
    expect_none(&wrong, "give a part of it a name");
}

#[test]
fn a_function_is_counted_from_its_first_line_to_its_last() {
    let text = "//! Text.\n\nimpl X {\n    pub(super) async fn a(\n        one: u8,\n    ) -> u8 {\n        // Why.\n        one\n    }\n}\n\n\
                trait T {\n    fn declared(\n        one: u8,\n    ) -> u8;\n\n    fn own() {\n    }\n}\n";
    let source = Source {
        path: "core/src/x.rs".to_owned(),
        text: text.to_owned(),
    };
    let own = |name: &str, at, lines| (name.to_owned(), at, lines);
    assert_eq!(functions(&source), [own("a", 4, 6), own("own", 17, 2)]);
}
