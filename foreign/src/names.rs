//! Names of several nodes in one word, as Slurm writes them: `n[01-10,17]`.

use std::collections::BTreeSet;

/// The most names that one word may stand for: more than a fleet has nodes.
const NAMES_MAX: usize = 20_000;

/// The most brackets in a word. Names have two or three; a word of nothing else would need as many calls.
const BRACKETS_MAX: usize = 8;

/// The names that a word stands for, in order. A word without brackets stands for itself. The error is for
/// the user.
fn expand(word: &str) -> Result<Vec<String>, String> {
    let Some(at) = word.find('[') else {
        return match word.contains(']') {
            true => Err(format!("{word}: there is no [ before ]")),
            false => Ok(vec![word.to_owned()]),
        };
    };
    if word.matches('[').count() > BRACKETS_MAX {
        return Err(format!(
            "{} has more than {BRACKETS_MAX} brackets",
            &word[..at]
        ));
    }
    let (head, rest) = word.split_at(at);
    let (ranges, tail) = rest[1..]
        .split_once(']')
        .ok_or_else(|| format!("{word}: the ] is missing"))?;
    let tails = expand(tail)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        for number in numbers(range).map_err(|why| format!("{word}: {why}"))? {
            if names.len() + tails.len() > NAMES_MAX {
                return Err(format!("{word} stands for more than {NAMES_MAX} names"));
            }
            names.extend(tails.iter().map(|tail| format!("{head}{number}{tail}")));
        }
    }
    Ok(names)
}

/// All names that some words stand for.
pub fn expand_all<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Vec<String>, String> {
    let (mut names, mut seen) = (Vec::new(), BTreeSet::new());
    for word in words {
        for name in expand(word)? {
            if seen.insert(name.clone()) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// The parts between commas, but for those in brackets.
pub fn parts(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

/// `01-03` as 01, 02, 03: with as many digits as the first number has.
fn numbers(range: &str) -> Result<Vec<String>, String> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let read = |digits: &str| match digits.chars().all(|c| c.is_ascii_digit()) {
        true => digits.parse::<usize>().ok(),
        false => None,
    };
    let (Some(from), Some(to)) = (read(first), read(last)) else {
        return Err(format!(
            "{range:?} is no number and no range, as in [1-3,7]"
        ));
    };
    if from > to {
        return Err(format!("{range} ends before it begins"));
    }
    if to - from >= NAMES_MAX {
        return Err(format!("{range} has more than {NAMES_MAX} numbers"));
    }
    let width = first.len();
    Ok((from..=to)
        .map(|number| format!("{number:0width$}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_slurm_writes_them() {
        for (word, names) in [
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[01-03,10]", "n01 n02 n03 n10"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("r[1-2]n[1-2].x", "r1n1.x r1n2.x r2n1.x r2n2.x"),
        ] {
            assert_eq!(expand(word).unwrap().join(" "), names, "{word}");
        }
        for bad in [
            "n[1",
            "n1]",
            "n[]",
            "n[3-1]",
            "n[a-b]",
            "n[1--2]",
            "n[1-99999999]",
            "n[+1-2]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
        assert!(expand("n[1-15000]m[1-15000]").is_err());
        assert_eq!(
            expand_all(["n[1-2]", "n2", "m"]).unwrap().join(" "),
            "n1 n2 m"
        );
    }
}
