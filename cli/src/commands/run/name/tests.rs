use muster_core::id::label_error;
use proptest::prelude::*;

use super::*;

const HERE: &str = "/home/ada/Digits_2";

fn of_path(path: &str) -> String {
    made_from(Script::Path { path, here: HERE }, "3f2a1")
}

#[test]
fn the_script_is_recognised() {
    let long = "a-very-long-name-of-a-script".repeat(7);
    for (path, name) in [
        ("examples/digits/train.py", "train"),
        ("My_Script.py", "my-script"),
        ("TRAIN.PY", "train"),
        ("01_train.py", "train"),
        ("01train.py", "train"),
        ("3-finetune.py", "finetune"),
        ("2024_06_run.py", "run"),
        ("exp.2024-01_run.py", "exp-2024-01-run"),
        ("train.v2.py", "train-v2"),
        ("3d.py", "job-3d"),
        ("7b_sft.py", "job-7b-sft"),
        ("2024.py", "job-2024"),
        ("2024_06.py", "job-2024-06"),
        ("__main__.py", "main"),
        ("digits/__main__.py", "digits-main"),
        ("main.py", "main"),
        ("examples/digits/", "digits"),
        ("examples/digits//", "digits"),
        ("./run.sh", "run"),
        ("/workspace/run.sh", "run"),
        ("../bin/a.out", "a-out"),
        (".", "digits-2"),
        ("..", "digits-2"),
        ("./", "digits-2"),
        ("tr\u{e4}ning.py", "tr-ning"),
        ("\u{43e}\u{431}\u{443}\u{447}.py", "job"),
        ("\u{8bad}\u{7ec3}2.py", "job-2"),
        ("my run (1).py", "my-run-1"),
        ("-.py", "job"),
        ("_.py", "job"),
        (".py", "job"),
        ("/", "digits-2"),
        ("", "digits-2"),
        (&long, "a-very-long-name-of-a-scripta-very-long"),
    ] {
        assert_eq!(of_path(path), format!("{name}-3f2a1"), "{path}");
    }
}

#[test]
fn a_module_is_named_by_its_last_part() {
    for (module, name) in [
        ("train", "train"),
        ("package.module", "module"),
        ("my.Train_LLM", "train-llm"),
        ("package.__main__", "package-main"),
        ("package.sub.py", "py"),
        ("__main__", "main"),
        (".", "job"),
    ] {
        let made = made_from(Script::Module(module), "3f2a1");
        assert_eq!(made, format!("{name}-3f2a1"), "{module}");
    }
}

/// Names as people make them: words of all kinds with separators, folders and suffixes.
fn names() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("train".to_owned()),
        Just("__main__".to_owned()),
        Just("..".to_owned()),
        any::<u32>().prop_map(|n| n.to_string()),
        any::<char>().prop_map(String::from),
        any::<String>(),
        proptest::collection::vec(proptest::char::range('!', '~'), 0..210)
            .prop_map(|chars| chars.into_iter().collect()),
    ];
    let between = prop_oneof![
        Just("_"),
        Just("-"),
        Just("."),
        Just("/"),
        Just(" "),
        Just(""),
        Just(".py"),
        Just("/./"),
    ];
    proptest::collection::vec((word, between), 0..5).prop_map(|parts| {
        parts
            .into_iter()
            .flat_map(|(word, b)| [word, b.to_owned()])
            .collect()
    })
}

/// The words of a text, as somebody who looks for the job reads them.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn every_name_is_valid(script in names(), here in names(), is_module: bool) {
        let from = match is_module {
            true => Script::Module(&script),
            false => Script::Path { path: &script, here: &here },
        };
        let made = made_from(from, "3f2a1");
        prop_assert_eq!(label_error(&made), None);
        prop_assert!(made.ends_with("-3f2a1") && !made.contains("--"), "{}", made);
    }

    /// A word of letters in the name of the file is in the job's name, if it is within its length.
    #[test]
    fn every_name_is_recognisable(before in "[0-9_. -]{0,6}", word in "[a-zA-Z]{3,12}", after in "[a-zA-Z0-9_. -]{0,12}") {
        let made = of_path(&format!("some/folder/{before}{word}{after}.py"));
        let whole = words(&format!("{word}{after}"));
        let first = &whole[0];
        prop_assert!(made.starts_with(first.as_str()), "{first} is not in {made}");
        prop_assert!(!made.starts_with("some") || first == "some");
    }
}
