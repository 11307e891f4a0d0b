//! The options of mpirun: where they end, how many ranks they ask for, and how Open MPI 5 wants them written.
//!
//! Open MPI up to version 4 takes options of several letters with one dash and with two. Version 5 (PRRTE) wants
//! two. Two are right for both, so such options are rewritten. Sources: the manual of mpirun 4.1 and 5.0, and
//! PRRTE's `src/mca/schizo/ompi/schizo_ompi.c`, which still takes `-np` and options that end with `mca`. hydra, the
//! launcher of MPICH and of Intel MPI, has options of its own, and its commands stay as they are.

use crate::words::Word;

/// Options without dashes, and how many values follow. Those of hydra are in a list of their own.
const OPEN_MPI: &[(&str, usize)] = &[
    ("H", 1),
    ("N", 1),
    ("V", 0),
    ("allow-run-as-root", 0),
    ("am", 1),
    ("amca", 1),
    ("app", 1),
    ("bind-to", 1),
    ("bind-to-board", 0),
    ("bind-to-core", 0),
    ("bind-to-none", 0),
    ("bind-to-socket", 0),
    ("bycore", 0),
    ("bynode", 0),
    ("byslot", 0),
    ("bysocket", 0),
    ("c", 1),
    ("continuous", 0),
    ("cpu-list", 1),
    ("cpu-set", 1),
    ("cpus-per-proc", 1),
    ("cpus-per-rank", 1),
    ("d", 0),
    ("debug-daemons", 0),
    ("debug-daemons-file", 0),
    ("debug-devel", 0),
    ("default-hostfile", 1),
    ("disable-recovery", 0),
    ("display", 1),
    ("display-allocation", 0),
    ("display-comm", 0),
    ("display-devel-allocation", 0),
    ("display-devel-map", 0),
    ("display-map", 0),
    ("display-topo", 0),
    ("do-not-launch", 0),
    ("do-not-resolve", 0),
    ("enable-recovery", 0),
    ("get-stack-traces", 0),
    ("gmca", 2),
    ("hetero-nodes", 0),
    ("host", 1),
    ("hostfile", 1),
    ("index-argv-by-rank", 0),
    ("launch-agent", 1),
    ("leave-session-attached", 0),
    ("machinefile", 1),
    ("map-by", 1),
    ("max-restarts", 1),
    ("max-vm-size", 1),
    ("mca", 2),
    ("merge-stderr-to-stdout", 0),
    ("n", 1),
    ("nolocal", 0),
    ("nooversubscribe", 0),
    ("noprefix", 0),
    ("novm", 0),
    ("np", 1),
    ("npernode", 1),
    ("npersocket", 1),
    ("omca", 2),
    ("ompi-server", 1),
    ("output", 1),
    ("output-directory", 1),
    ("output-filename", 1),
    ("output-proctable", 0),
    ("oversubscribe", 0),
    ("path", 1),
    ("pernode", 0),
    ("personality", 1),
    ("pmixmca", 2),
    ("ppr", 1),
    ("prefix", 1),
    ("preload-binary", 0),
    ("preload-files", 1),
    ("prtemca", 2),
    ("pset", 1),
    ("q", 0),
    ("quiet", 0),
    ("rank-by", 1),
    ("rankfile", 1),
    ("report-bindings", 0),
    ("report-child-jobs-separately", 0),
    ("report-pid", 1),
    ("report-state-on-timeout", 0),
    ("report-uri", 1),
    ("rf", 1),
    ("runtime-options", 1),
    ("s", 0),
    ("server-wait-time", 1),
    ("show-progress", 0),
    ("stdin", 1),
    ("stop-on-exec", 0),
    ("stream-buffering", 1),
    ("tag-output", 0),
    ("timeout", 1),
    ("timestamp-output", 0),
    ("tmpdir", 1),
    ("tune", 1),
    ("use-hwthread-cpus", 0),
    ("use-regexp", 0),
    ("v", 0),
    ("verbose", 0),
    ("wait-for-server", 0),
    ("wd", 1),
    ("wdir", 1),
    ("with-ft", 1),
    ("x", 1),
    ("xml", 0),
    ("xml-file", 1),
    ("xterm", 1),
];

const HYDRA: &[(&str, usize)] = &[
    ("bootstrap", 1),
    ("bootstrap-exec", 1),
    ("disable-hostname-propagation", 0),
    ("env", 2),
    ("envall", 0),
    ("envlist", 1),
    ("envnone", 0),
    ("f", 1),
    ("genv", 2),
    ("genvall", 0),
    ("genvlist", 1),
    ("genvnone", 0),
    ("hosts", 1),
    ("iface", 1),
    ("l", 0),
    ("launcher", 1),
    ("launcher-exec", 1),
    ("perhost", 1),
    ("ppn", 1),
    ("prepend-rank", 0),
    ("print-all-exitcodes", 0),
    ("rmk", 1),
    ("rr", 0),
];

/// The options of one mpirun, before the programs that it starts.
#[derive(Debug, Default)]
pub(super) struct Asked<'w> {
    /// The number of ranks of each program, in the order of `:`. `None`: it is not said.
    pub(super) counts: Vec<Option<&'w Word>>,
    /// Ranks may be more than slots.
    pub(super) oversubscribes: bool,
    /// Where options are that Open MPI 5 wants with two dashes, from the first option on.
    pub(super) one_dash: Vec<usize>,
    pub(super) is_hydra: bool,
}

/// How many ranks all programs ask for together, and where. `None`: one of them gets what is left. The text is
/// empty if only a shell knows it. `resolved` puts in the values of variables.
pub(super) fn total<'w>(
    asked: &Asked<'w>,
    resolved: impl Fn(&Word) -> String,
) -> Option<(String, &'w Word)> {
    let counts: Option<Vec<&Word>> = asked.counts.iter().copied().collect();
    let counts = counts?;
    let first = *counts.first()?;
    if counts.len() == 1 {
        return Some((resolved(first), first));
    }
    let numbers = counts
        .iter()
        .map(|count| resolved(count).parse::<i64>().ok());
    let sum =
        numbers.reduce(|sum, next| sum.zip(next).and_then(|(sum, next)| sum.checked_add(next)));
    let text = sum.flatten().map(|sum| sum.to_string());
    Some((text.unwrap_or_default(), first))
}

/// Reads what follows the program's name.
pub(super) fn read<'w>(options: &[&'w Word]) -> Asked<'w> {
    let mut asked = Asked::default();
    let mut at = 0;
    loop {
        let mut count = None;
        while let Some(word) = options.get(at).filter(|word| word.text.starts_with('-')) {
            let bare = word.text.trim_start_matches('-');
            let (name, own) = match bare.split_once('=') {
                Some((name, _)) => (name, true),
                None => (bare, false),
            };
            let in_table = |table: &[(&str, usize)]| {
                let found = table.iter().find(|(known, _)| *known == name);
                found.map(|(_, values)| *values)
            };
            let (ours, hydra) = (in_table(OPEN_MPI), in_table(HYDRA));
            let values = match own {
                true => 0,
                false => ours.or(hydra).unwrap_or(0),
            };
            let value = options.get(at + 1).copied().filter(|_| values > 0);
            if matches!(name, "np" | "n" | "c") {
                count = value;
            }
            asked.is_hydra |= ours.is_none() && hydra.is_some();
            let allows = |word: Option<&Word>| {
                let text = word.map(|word| word.text.to_lowercase());
                text.is_some_and(|text| {
                    text.contains("oversubscribe") && !text.contains("nooversubscribe")
                })
            };
            asked.oversubscribes |= match name {
                "oversubscribe" => true,
                "map-by" => allows(value) || own && allows(Some(word)),
                "mca" | "gmca" | "omca" | "prtemca" => {
                    let is_on = options.get(at + 2).is_some_and(|on| is_on(&on.text));
                    allows(value) && is_on || allows(options.get(at + 2).copied())
                }
                _ => false,
            };
            let one_dash = !word.text.starts_with("--") && name.len() > 1;
            if one_dash && ours.is_some() && name != "np" && !name.ends_with("mca") {
                asked.one_dash.push(at);
            }
            at += 1 + values;
        }
        asked.counts.push(count);
        match options.iter().skip(at).position(|word| word.text == ":") {
            Some(next) => at += next + 1,
            None => return asked,
        }
    }
}

fn is_on(text: &str) -> bool {
    matches!(text, "1" | "true" | "yes" | "t" | "y" | "enabled")
}

/// Whether variables of the container allow more ranks than slots.
pub(super) fn oversubscribes_by(name: &str, value: &str) -> bool {
    match name {
        "OMPI_MCA_rmaps_base_oversubscribe" => is_on(&value.to_lowercase()),
        "PRTE_MCA_rmaps_default_mapping_policy" => {
            let value = value.to_lowercase();
            value.contains("oversubscribe") && !value.contains("nooversubscribe")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{shell, tree::Place};

    fn words(text: &str) -> Vec<Word> {
        let all = shell::words(text).unwrap();
        let word = |text| Word {
            text,
            place: Place::START,
            path: String::new(),
            on_node: None,
            by_shell: false,
        };
        all.into_iter().map(word).collect()
    }

    #[test]
    fn ranks_are_those_of_the_options_and_not_of_the_program() {
        let counts = |text: &str| -> Vec<Option<String>> {
            let words = words(text);
            let asked = read(&words.iter().collect::<Vec<_>>());
            let counts = asked.counts.into_iter();
            counts
                .map(|count| count.map(|word| word.text.clone()))
                .collect()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(counts("-np 4 python a.py -n 9"), [some("4")]);
        assert_eq!(counts("-x A -mca btl tcp,self --n 2 ./a"), [some("2")]);
        assert_eq!(counts("python a.py -n 9"), [None]);
        assert_eq!(counts("-np 2 a : -np 4 b -np 7"), [some("2"), some("4")]);
        assert_eq!(counts("-np 2 a -x : b"), [some("2"), None]);
        assert_eq!(counts("-genv A B -n 3 a"), [some("3")]);
    }

    #[test]
    fn more_ranks_than_slots_may_be_asked_for() {
        let may = |text: &str| {
            let words = words(text);
            read(&words.iter().collect::<Vec<_>>()).oversubscribes
        };
        for text in [
            "--oversubscribe -np 9 a",
            "-oversubscribe a",
            "--map-by node:OVERSUBSCRIBE a",
            "--map-by=:oversubscribe a",
            "-mca rmaps_base_oversubscribe 1 a",
            "--prtemca rmaps_default_mapping_policy :oversubscribe a",
        ] {
            assert!(may(text), "{text}");
        }
        for text in [
            "-np 9 a --oversubscribe",
            "--nooversubscribe a",
            "--map-by :nooversubscribe a",
            "-mca rmaps_base_oversubscribe 0 a",
        ] {
            assert!(!may(text), "{text}");
        }
    }

    #[test]
    fn options_of_several_letters_get_two_dashes() {
        let rewritten = |text: &str| {
            let words = words(text);
            let asked = read(&words.iter().collect::<Vec<_>>());
            let at = asked.one_dash.iter();
            at.map(|at| words[*at].text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            rewritten("-np 4 -bind-to none -map-by slot -x PATH -mca btl tcp a -bind-to b"),
            ["-bind-to", "-map-by"]
        );
        assert_eq!(
            rewritten("-H h -N 2 --bind-to none -gmca a b -q a"),
            Vec::<String>::new()
        );
        assert_eq!(
            rewritten("-np 1 -tag-output a : -np 2 -wdir /x b"),
            ["-tag-output", "-wdir"]
        );
    }
}
