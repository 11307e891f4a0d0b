//! A table of what can be wrong, with one word for each result.

use std::time::Duration;

use super::*;

/// `a`: `a` alone; `a+b`: both together. Behind a name `!`: its matmul is wrong, `?`: silent, `#`: fails, `-`: not known, a
/// number: it took so many milliseconds (else 10). Behind `=`: a number of MB/s, or `wrong`, `fails`, `silent`.
fn trial(text: &str) -> Trial {
    let (members, together) = text.split_once('=').unwrap_or((text, ""));
    let member = |text: &str| {
        let at = text
            .find(|letter: char| !letter.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let own = match &text[at..] {
            "" => Own::Right {
                time: Duration::from_millis(10),
            },
            "!" => Own::Wrong("1 of 9 numbers".into()),
            "?" => Own::Silent,
            "#" => Own::Failed("CUDA error".into()),
            "-" => Own::Unknown("there is no torch".into()),
            millis => Own::Right {
                time: Duration::from_millis(millis.parse().unwrap()),
            },
        };
        Member {
            node: text[..at].into(),
            own,
        }
    };
    Trial {
        members: members.split('+').map(member).collect(),
        together: match together {
            "" => Together::NotTried,
            "wrong" => Together::Wrong("3 of 9 numbers".into()),
            "fails" => Together::Failed("connection reset".into()),
            "silent" => Together::Silent,
            rate => Together::Right {
                bytes_per_second: rate.parse::<u64>().unwrap() * 1_000_000,
            },
        },
    }
}

fn nodes(text: &str) -> Vec<Node> {
    let node = |name: &str| Node {
        name: name.into(),
        model: Some("H100".into()),
    };
    text.split(' ').map(node).collect()
}

fn trials(text: &str) -> Vec<Trial> {
    text.split(' ').map(trial).collect()
}

/// As `bad a; bad b/c; all; good d`.
fn told(names: &str, results: &str) -> String {
    let verdicts = verdicts(&nodes(names), &trials(results));
    let words = verdicts.iter().map(|verdict| {
        let standing = match verdict.standing {
            Standing::Bad => "bad",
            Standing::Slow => "slow",
            Standing::NotChecked => "not",
            Standing::Good => "good",
        };
        match &verdict.subject {
            Subject::All => "all".to_owned(),
            Subject::Node(name) => format!("{standing} {name}"),
            Subject::Pair(a, b) => format!("{standing} {a}/{b}"),
        }
    });
    words.collect::<Vec<_>>().join("; ")
}

#[test]
fn a_bad_node_is_told_from_a_bad_pair() {
    let four = "a b c d";
    for (names, results, expected) in [
        // All well.
        (
            four,
            "a+d=90 b+c=90 a+c=90 b+d=90",
            "good a; good b; good c; good d",
        ),
        // A bad node fails with two partners, which work with others.
        (
            four,
            "a+d=fails b+c=90 a+c=silent b+d=90",
            "bad a; good b; good c; good d",
        ),
        // A bad pair fails only together.
        (
            four,
            "a+d=90 b+c=fails a+c=90 b+d=90",
            "bad b/c; good a; good b; good c; good d",
        ),
        // A wrong sum is as bad as none.
        (
            four,
            "a+d=wrong b+c=90 a+c=90 b+d=90",
            "bad a/d; good a; good b; good c; good d",
        ),
        // Both: the pairs of a bad node are explained by it, others are not.
        (
            "a b c d e f",
            "a+f=fails b+e=90 c+d=fails a+e=fails f+d=90 b+c=90",
            "bad c/d; bad a; good b; good c; good d; good e; good f",
        ),
        // Two bad nodes that met.
        (
            four,
            "a+b=fails c+d=90 a+c=fails b+d=fails",
            "bad a; bad b; good c; good d",
        ),
        // Between two bad ones nothing is known of a third.
        (
            "x a b c y z",
            "x+a=fails b+c=fails y+z=90 x+z=90 a+b=fails c+y=fails",
            "bad a; not b; bad c; good x; good y; good z",
        ),
        // Wrong by itself: silent corruption. Its partners are not blamed for what they did together.
        (
            four,
            "a!+d=fails b+c=90 a!+c=90 b+d=90",
            "bad a; good b; good c; good d",
        ),
        // A crash, and one that hangs: the partner waits in vain.
        (
            four,
            "a#+d-=fails b+c=90 a#+c=fails b+d=90",
            "bad a; good b; good c; good d",
        ),
        (
            four,
            "a?+d=silent b+c=90 a?+c=silent b+d=90",
            "bad a; good b; good c; good d",
        ),
        // All fail: no node is to blame.
        (
            four,
            "a+d=fails b+c=fails a+c=silent b+d=fails",
            "all; not a; not b; not c; not d",
        ),
        ("a b c", "a# b# c#", "all; not a; not b; not c"),
        // Odd: one is alone in each round.
        ("a b c", "a b+c=90 c a+b=90", "good a; good b; good c"),
        ("a b c", "a b+c=fails c a+b=fails", "bad b; not a; not c"),
        (
            "a b c",
            "a b+c=fails c a+b=fails a+c=90",
            "bad b; good a; good c",
        ),
        (
            "a b c",
            "a b+c=fails c a+b=90",
            "bad b/c; good a; good b; not c",
        ),
        // Two: alone and together.
        ("a b", "a b a+b=90", "good a; good b"),
        ("a b", "a b a+b=fails", "bad a/b; not a; not b"),
        ("a b", "a! b a!+b=90", "bad a; good b"),
        // One.
        ("a", "a", "good a"),
        ("a", "a!", "bad a"),
        ("a", "a-", "not a"),
        // No torch on one: nothing is known of it, and its partners have others.
        (
            four,
            "a-+d=fails b+c=90 a-+c=fails b+d=90",
            "not a; good b; good c; good d",
        ),
        // Not started at all.
        ("a b c", "b+c=90", "not a; good b; good c"),
    ] {
        let mut words: Vec<String> = told(names, results)
            .split("; ")
            .map(str::to_owned)
            .collect();
        let mut wanted: Vec<&str> = expected.split("; ").collect();
        words.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(words, wanted, "{results}");
    }
}

#[test]
fn slow_nodes_and_pairs_are_told_by_medians() {
    for (names, results, expected) in [
        (
            "a b c d",
            "a25+d=90 b+c=90 a21+c=90 b+d=90",
            "slow a; good b; good c; good d",
        ),
        // One slow time may be a neighbour's doing.
        (
            "a b c d",
            "a25+d=90 b+c=90 a11+c=90 b+d=90",
            "good a; good b; good c; good d",
        ),
        (
            "a b c d",
            "a+d=40 b+c=90 a+c=90 b+d=90",
            "slow a/d; good a; good b; good c; good d",
        ),
        (
            "a b c d e f",
            "a+f=40 b+e=90 c+d=90 a+e=30 f+d=90 b+c=90",
            "slow a; good b; good c; good d; good e; good f",
        ),
        // Two are no median.
        ("a b", "a b99 a+b=90", "good a; good b"),
        // A bad node is not slow as well.
        (
            "a b c d",
            "a!+d=1 b+c=90 a!+c=1 b+d=90",
            "bad a; good b; good c; good d",
        ),
    ] {
        assert_eq!(told(names, results), expected, "{results}");
    }
    let mut mixed = nodes("a b c d");
    mixed[0].model = Some("A100".into());
    let mut without = nodes("a b c d");
    without.iter_mut().for_each(|node| node.model = None);
    let of_cpus = verdicts(&without, &trials("a25+d=9 b+c=90 a25+c=9 b+d=90"));
    assert!(of_cpus.iter().all(|one| one.standing == Standing::Good));
    let verdicts = verdicts(&mixed, &trials("a25+d=90 b+c=90 a25+c=90 b+d=90"));
    assert!(verdicts.iter().all(|one| one.standing == Standing::Good));
    assert_eq!(
        verdicts[1].evidence.matmul_median,
        Some(Duration::from_millis(10))
    );
}

#[test]
fn a_verdict_says_why_and_has_the_values() {
    let all = verdicts(
        &nodes("a b c d"),
        &trials("a+d=fails b+c=90 a+c=silent b+d=80"),
    );
    assert_eq!(
        all[0].reason,
        "it fails with 2 different partners (c, d): all-reduce had no result when the time was over"
    );
    assert_eq!(all[0].evidence.fails_with, ["c".into(), "d".into()]);
    assert_eq!(all[1].evidence.works_with, ["c".into(), "d".into()]);
    assert_eq!(all[1].evidence.bytes_per_second, Some(90_000_000));
    let pair = verdicts(&nodes("a b"), &trials("a b a+b=wrong"));
    assert_eq!(
        pair[0].reason,
        "the network between a and b: all-reduce gives a wrong result: 3 of 9 numbers; each works alone; a third node would tell whether it is one of them"
    );
    let slow = verdicts(&nodes("a b c"), &trials("a40 b c"));
    assert_eq!(
        slow[0].reason,
        "its matmul takes 40.0 ms, 4.0 times the median of 3 nodes (H100), 10.0 ms"
    );
}

#[test]
fn nobody_meets_the_same_partner_twice() {
    let names = |count: usize| -> Vec<NodeName> {
        (0..count).map(|at| format!("n{at:02}").into()).collect()
    };
    for count in 3..12 {
        let all = rounds(&names(count), 99);
        assert_eq!(all.len(), if count % 2 == 0 { count - 1 } else { count });
        let mut met = std::collections::BTreeSet::new();
        for round in &all {
            let mut there: Vec<&NodeName> = round.iter().flatten().collect();
            there.sort_unstable();
            there.dedup();
            assert_eq!(there.len(), count, "each is there once");
            let alone = round.iter().filter(|job| job.len() == 1).count();
            assert_eq!(alone, count % 2);
            for job in round.iter().filter(|job| job.len() == 2) {
                let mut job = job.clone();
                job.sort_unstable();
                assert!(met.insert(job), "{count}");
            }
        }
        assert_eq!(rounds(&names(count), 2).len(), 2);
    }
    assert_eq!(rounds(&names(1), 2).len(), 1);
    let two = rounds(&names(2), 2);
    assert_eq!((two[0].len(), two[1][0].len()), (2, 2));
    assert!(rounds(&[], 2).is_empty());
}

#[test]
fn a_doubt_gets_one_more_round() {
    let more = |names: &str, results: &str| {
        let names: Vec<NodeName> = names.split(' ').map(NodeName::from).collect();
        let pairs = one_more(&names, &trials(results));
        let pairs = pairs.iter().map(|pair| format!("{}+{}", pair[0], pair[1]));
        pairs.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(more("a b c", "a b+c=90 c a+b=90"), "");
    // It is c, or the network between b and c.
    assert_eq!(more("a b c", "a b+c=fails c a+b=90"), "c+a");
    // It is b, or all of them.
    assert_eq!(more("a b c", "a b+c=fails c a+b=fails"), "a+c");
    assert_eq!(
        more("a b c d", "a+d=fails b+c=fails a+c=fails b+d=fails"),
        "a+b c+d"
    );
    // Nobody is left to try.
    assert_eq!(more("a b", "a b a+b=fails"), "");
    assert_eq!(more("a b c", "a b+c=fails c a+b=fails a+c=fails"), "");
    // It fails by itself, so there is no doubt.
    assert_eq!(more("a b c", "a! b+c=90 c a!+b=fails"), "");
}
