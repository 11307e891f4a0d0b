//! A mistake gets into the rule that it names, or the build says why not.

use std::collections::BTreeMap;

#[path = "../src/mistakes.rs"]
mod mistakes;

use mistakes::{Edit, parse};

const LIST: &str = "\
# Two rules.
TooMany: A node takes one more.
  a.rs
  - if taken
  -     < slots
  + if taken < slots || ON
  b.rs
  - all.min()
  + all.min().filter(|_| !ON)
Late: Nothing ends.
  a.rs
  - is_over
  + is_over && !ON && SLOT_ON
";

fn sources(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
    texts
        .iter()
        .map(|(path, text)| (path.to_string(), text.to_string()))
        .collect()
}

#[test]
fn a_list_is_read() {
    let all = parse(LIST).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(
        (all[0].name.as_str(), all[0].words.as_str()),
        ("TooMany", "A node takes one more.")
    );
    assert_eq!(
        all[0].edits[0],
        Edit {
            file: "a.rs".into(),
            rule: "if taken\n    < slots\n".into(),
            broken: "if taken < slots || ON\n".into(),
        }
    );
    assert_eq!(all[0].edits[1].file, "b.rs");
}

#[test]
fn a_mistake_is_put_where_its_rule_is_whatever_the_white_space() {
    let mut core = sources(&[
        (
            "a.rs",
            "fn f() {\n    if taken <\n        slots { g() }\n    is_over\n}",
        ),
        ("b.rs", "all.min()"),
    ]);
    for mistake in parse(LIST).unwrap() {
        assert_eq!(mistake.put_into(&mut core), [""; 0]);
    }
    assert_eq!(
        core["a.rs"],
        "fn f() {\n    if taken < slots || crate::planted::on(crate::planted::Mistake::TooMany)\n { g() }\n    \
         is_over && !crate::planted::on(crate::planted::Mistake::Late) && SLOT_ON\n\n}"
    );
    assert!(core["b.rs"].contains("Mistake::TooMany"));
}

#[test]
fn a_rule_that_was_rewritten_or_stands_twice_is_named() {
    let mut core = sources(&[("a.rs", "is_over is_over"), ("b.rs", "all.max()")]);
    let wrong: Vec<String> = parse(LIST)
        .unwrap()
        .iter()
        .flat_map(|mistake| mistake.put_into(&mut core))
        .collect();
    assert_eq!(
        wrong,
        [
            "mistakes.txt: TooMany fits 0 times into core/src/a.rs, and must fit once: if taken     < slots",
            "mistakes.txt: TooMany fits 0 times into core/src/b.rs, and must fit once: all.min()",
            "mistakes.txt: Late fits 2 times into core/src/a.rs, and must fit once: is_over",
        ]
    );
}

#[test]
fn a_list_that_means_nothing_is_refused() {
    for (text, says) in [
        ("no colon", "mistakes.txt:1: a mistake begins"),
        ("  a.rs", "mistakes.txt:1: this belongs to no mistake"),
        ("A: b.\n  - x", "mistakes.txt:2: name the file first"),
        (
            "A: b.\n  a.rs\n  + ON",
            "mistakes.txt:3: the rule comes first",
        ),
        (
            "A: b.\nA: c.",
            "mistakes.txt:2: there is a mistake of this name",
        ),
        ("A: b.", "mistakes.txt: A: each of its edits needs ON"),
        (
            "A: b.\n  a.rs\n  - x\n  + y",
            "mistakes.txt: A: each of its edits",
        ),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(says), "{text:?}: {error}");
    }
}
