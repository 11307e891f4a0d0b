//! "Did you mean ...?" for a misspelt field name.

/// Names that users of torchrun, Kubernetes and Slurm write, and our names for them.
const HABITS: [(&str, &str); 14] = [
    ("nnodes", "replicas"),
    ("nodes", "replicas"),
    ("minnodes", "minReplicas"),
    ("maxnodes", "maxReplicas"),
    ("nprocpernode", "procPerNode"),
    ("gpus", "gpusPerNode"),
    ("environment", "env"),
    ("cwd", "workingDir"),
    ("workdir", "workingDir"),
    ("entrypoint", "command"),
    ("terminationgraceperiodseconds", "stopGracePeriod"),
    ("gracePeriod", "stopGracePeriod"),
    ("backofflimit", "restartPolicy"),
    ("maxrestarts", "restartPolicy"),
];

/// The known name that is most likely meant. `None`: none is near enough.
pub fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    habit(written, known).or_else(|| misspelt(written, known))
}

/// The known name of which this one is a misspelling, so that its value is probably one of that field.
pub fn misspelt<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let folded = fold(written);
    if let Some(same) = known.iter().find(|name| fold(name) == folded) {
        return Some(same);
    }
    if habit(written, known).is_some() {
        return None;
    }
    let (distance, name) = known
        .iter()
        .map(|name| (distance(&folded, &fold(name)), *name))
        .min()?;
    // If more than a third of the letters differ, it is another word.
    (distance <= (folded.chars().count() / 3).max(1)).then_some(name)
}

/// The known name that others call like this.
fn habit<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let folded = fold(written);
    let is_known = known.iter().any(|name| fold(name) == folded);
    let (_, meant) = HABITS
        .iter()
        .find(|(habit, _)| !is_known && fold(habit) == folded)?;
    known.iter().find(|name| *name == meant).copied()
}

/// Removes case and separators, in which names are often misspelt: `min_replicas` is `minReplicas`.
fn fold(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '_' | '-' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// The number of edits from one text to the other: insert, delete, replace, or swap two neighbours.
/// This is the optimal string alignment distance, computed with three rows of the table of Wagner
/// and Fischer. A long text is no misspelt name and is not compared.
fn distance(from: &str, to: &str) -> usize {
    const LONGEST: usize = 64;
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    if from.len() > LONGEST {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for i in 0..from.len() {
        let mut row = vec![i + 1];
        for j in 0..to.len() {
            let replaced = last[j] + usize::from(from[i] != to[j]);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && from[i] == to[j - 1] && from[i - 1] == to[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = [
            "replicas",
            "minReplicas",
            "maxReplicas",
            "workingDir",
            "env",
        ];
        for (written, meant) in [
            ("replica", "replicas"),
            ("min_replicas", "minReplicas"),
            ("MaxReplicas", "maxReplicas"),
            ("minReplcias", "minReplicas"),
            ("nnodes", "replicas"),
            ("cwd", "workingDir"),
            ("workDir", "workingDir"),
        ] {
            assert_eq!(nearest(written, &known), Some(meant), "{written}");
        }
        for other in ["image", "x", "", &"replicas".repeat(1000)] {
            assert_eq!(nearest(other, &known), None, "{other}");
        }
        // Another system's word has another value.
        assert_eq!(misspelt("replcas", &known), Some("replicas"));
        assert_eq!(misspelt("min_replicas", &known), Some("minReplicas"));
        assert_eq!(misspelt("nnodes", &known), None);
    }

    #[test]
    fn counts_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("nmae", "name"), 1);
    }
}
