//! The exact report of the probes for each machine shape. After an intended change, run
//! `MUSTER_BLESS=1 cargo test -p muster-senses --test golden`, and read the difference before you
//! commit it.

use muster_core::node_report::NodeReport;
use muster_fake_nvml::shapes;
use muster_senses::{Machine, golden};

/// The report as text, without what differs between builds.
fn plain(report: &NodeReport) -> String {
    let mut report = report.clone();
    report.agent_version = "VERSION".into();
    report
        .health
        .findings
        .iter_mut()
        .for_each(|finding| finding.since_unix_us = 0);
    // These are of the machine that runs the test.
    report.network.addresses.clear();
    let text = serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n";
    // The row of a NIC takes one line of the file, not twenty.
    compact(&text)
}

/// Puts lists of words and of NVLinks on one line each.
fn compact(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('[') {
        let (before, list) = rest.split_at(at);
        out.push_str(before);
        let end = list.find(']').expect("JSON lists end") + 1;
        let inner = &list[1..end - 1];
        if inner.contains('[')
            || inner.contains("\"uuid\"")
            || inner.contains("\"name\"")
            || inner.contains("\"check\"")
        {
            out.push('[');
            rest = &list[1..];
        } else {
            out.push_str(&list[..end].split_whitespace().collect::<Vec<_>>().join(" "));
            rest = &list[end..];
        }
    }
    out + rest
}

/// The lines that differ, with their numbers.
fn difference(expected: &str, found: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let same_front = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = (old.len() - same_front).min(new.len() - same_front);
    let same_back = (0..rest)
        .take_while(|back| old[old.len() - 1 - back] == new[new.len() - 1 - back])
        .count();
    let lines = |sign: char, lines: &[&str]| {
        let changed = &lines[same_front..lines.len() - same_back];
        changed
            .iter()
            .enumerate()
            .take(40)
            .map(|(i, line)| format!("{sign} {:>4} {line}\n", same_front + i + 1))
            .collect::<String>()
    };
    lines('-', &old) + &lines('+', &new)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_all_machine_shapes() {
    let mut wrong = String::new();
    for shape in shapes::all() {
        let found = plain(&Machine::new(shape.name).look(&[]).await.report);
        let path = golden(shape.name);
        if std::env::var_os("MUSTER_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if expected != found {
            wrong += &format!("{}:\n{}", path.display(), difference(&expected, &found));
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[tokio::test]
async fn golden_reports_can_be_read_again() {
    for shape in shapes::all() {
        let text = std::fs::read_to_string(golden(shape.name)).unwrap();
        let report: NodeReport =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
        assert_eq!(plain(&report), text, "{}", shape.name);
    }
}
