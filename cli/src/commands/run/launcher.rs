//! What to say to a command line that has a launcher, or another program, where `muster run` takes the script.

use muster_core::spec::{
    launchers,
    wrappers::{self, Seen},
};

/// Why these words are no script with its arguments, and what to write. `None`: nothing speaks against it.
pub(super) fn hint(words: &[String]) -> Option<String> {
    let texts: Vec<&str> = words.iter().map(String::as_str).collect();
    let first = *texts.first()?;
    let found = launchers::started_by(&texts);
    if let Some(found) = found.as_ref().filter(|found| found.behind.is_empty()) {
        return Some(format!(
            "{first}: Muster starts the ranks itself. Leave {} out: muster run takes its flags, and then the script",
            found.launcher
        ));
    }
    let name = match wrappers::look(&texts) {
        Seen::Behind(behind) => behind.name,
        Seen::Opaque { name, .. } => name,
        Seen::NoWrapper => return None,
    };
    let without = match found {
        Some(found) => format!(", without {}", found.launcher),
        None => String::new(),
    };
    Some(format!(
        "{name} is a program and no script: give --no-python, and behind {name} what one rank runs{without}, as in muster run \
         --no-python -- {first} ... python3 train.py"
    ))
}

#[cfg(test)]
mod tests {
    use super::hint;

    #[test]
    fn a_launcher_or_a_program_in_place_of_the_script_is_told_of() {
        for (line, must) in [
            (
                "torchrun --nproc-per-node 2 train.py",
                "torchrun: Muster starts the ranks itself. Leave torchrun out: muster run takes its flags",
            ),
            (
                "nice -n 1 torchrun train.py",
                "nice is a program and no script: give --no-python, and behind nice what one rank runs, without torchrun, as in muster run --no-python -- nice ... python3 train.py",
            ),
            (
                "uv run train.py",
                "uv run is a program and no script: give --no-python, and behind uv run what one rank runs, as in muster run --no-python -- uv",
            ),
            ("conda run -n a torchrun a.py", "without torchrun"),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let is = hint(&words).unwrap_or_default();
            assert!(is.starts_with(must) || is.contains(must), "{line}: {is}");
        }
        for line in [
            "train.py --launcher torchrun",
            "examples/digits/train.py",
            "time.py",
            "run torchrun",
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(hint(&words), None, "{line}");
        }
    }
}
