//! A flag of Muster behind the script: it is the script's, as with torchrun, and perhaps not meant so.

/// Flags that a training script hardly has, so that Muster was probably meant.
const OURS: [&str; 9] = [
    "nnodes",
    "nproc-per-node",
    "gpus-per-node",
    "max-restarts",
    "stop-grace-period",
    "dry-run",
    "launch",
    "wait",
    "follow",
];

/// What to tell of such flags. `words`: the script and its arguments.
pub(super) fn note(words: &[String]) -> Option<String> {
    let (script, args) = words.split_first()?;
    let args = args.iter().take_while(|word| *word != "--");
    let found: Vec<&str> = args
        .filter(|word| {
            let name = word.split('=').next().unwrap_or(word).replace('_', "-");
            name.strip_prefix("--")
                .is_some_and(|name| OURS.contains(&name))
        })
        .map(String::as_str)
        .collect();
    match found.is_empty() {
        true => None,
        false => Some(format!(
            "behind {script}, and so for the script: {}. What Muster shall take stands before {script}",
            found.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::note;

    #[test]
    fn a_flag_of_muster_behind_the_script_is_pointed_at() {
        let told = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            note(&words)
        };
        let note = told("t.py --lr 1 --nnodes 2 --nproc_per_node=4").unwrap_or_default();
        assert!(
            note.contains("for the script: --nnodes, --nproc_per_node=4."),
            "{note}"
        );
        for line in [
            "t.py",
            "t.py --name x --env y",
            "t.py nnodes",
            "t.py -- --nnodes 2",
        ] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
