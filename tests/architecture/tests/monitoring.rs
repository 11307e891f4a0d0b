//! The alerts and the dashboard name only metrics and labels that the coordinator has, each alert has its
//! paragraph in docs/alerts.md, and is tested both ways.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{self, Write},
    process::{Command, Stdio},
};

use muster_architecture::{expect_none, root};
use serde_json::Value;

fn read(path: &str) -> String {
    let whole = root().join(path);
    fs::read_to_string(&whole).unwrap_or_else(|e| panic!("{}: {e}", whole.display()))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Kind and labels of each metric, as docs/metrics.md has them. Another test writes that page from what the
/// coordinator serves.
fn catalogue() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = read("docs/metrics.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `muster_"));
    let metric = |row: &str| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = format!("muster_{}", cells[0].trim_end_matches('`'));
        let labels = cells[2].split(", ").map(|label| label.trim_matches('`'));
        let labels = labels.map(str::to_owned).collect();
        (name, (cells[1].to_owned(), labels))
    };
    let all: BTreeMap<_, _> = rows.map(metric).collect();
    assert!(all.len() > 25, "the table has moved");
    all
}

/// The rules: records by name, alerts with their annotations.
fn rules() -> Vec<Value> {
    let file = yaml("manifests/monitoring/alerts.yaml");
    let groups = file["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}

fn alerts() -> Vec<(String, Value)> {
    let named = |rule: Value| Some((rule["alert"].as_str()?.to_owned(), rule));
    rules().into_iter().filter_map(named).collect()
}

/// All expressions of the dashboard: of panels, and of variables.
fn of_dashboard() -> Vec<String> {
    let board: Value = serde_json::from_str(&read("manifests/monitoring/dashboard.json")).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let of_panels = targets.map(|target| target["expr"].as_str().unwrap());
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let of_variables = variables.filter_map(|variable| variable["definition"].as_str());
    of_panels.chain(of_variables).map(str::to_owned).collect()
}

/// The metrics in an expression, each with the labels that its selector names.
fn metrics(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("muster") {
        let text = &rest[at..];
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        let selector = after
            .strip_prefix('{')
            .and_then(|text| text.split('}').next());
        // No value in our selectors has a comma or an equals sign.
        let labels = selector.into_iter().flat_map(|text| text.split(','));
        let labels = labels.filter_map(|part| part.split(['=', '!']).next());
        found.push((
            name.to_owned(),
            labels.map(|l| l.trim().to_owned()).collect(),
        ));
        rest = after;
    }
    found
}

#[test]
fn alerts_and_dashboard_name_only_what_there_is() {
    let catalogue = catalogue();
    let rules = rules();
    let recorded: BTreeSet<&str> = rules
        .iter()
        .filter_map(|rule| rule["record"].as_str())
        .collect();
    let expressions = rules
        .iter()
        .map(|rule| rule["expr"].as_str().unwrap().to_owned());
    let mut wrong = Vec::new();
    let (mut seen, mut wanted) = (0, 0);
    for expression in expressions.chain(of_dashboard()) {
        wanted += 1;
        let metrics = metrics(&expression);
        seen += usize::from(!metrics.is_empty());
        for (name, labels) in metrics {
            if recorded.contains(&*name) {
                continue;
            }
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| {
                let base = name.strip_suffix(suffix)?;
                let is_one = catalogue
                    .get(base)
                    .is_some_and(|(kind, _)| kind == "histogram");
                is_one.then(|| base.to_owned())
            });
            let Some((_, known)) = catalogue.get(&base.unwrap_or(name.clone())) else {
                wrong.push(format!("there is no {name}: {expression}"));
                continue;
            };
            let other = labels.iter().find(|label| !known.contains(*label));
            wrong.extend(other.map(|label| format!("{name} has no label {label}: {expression}")));
        }
    }
    assert_eq!(seen, wanted, "each expression is about a metric of ours");
    expect_none(&wrong, "docs/metrics.md has the names and labels");
}

#[test]
fn each_alert_has_a_paragraph_and_is_tested_both_ways() {
    let page = read("docs/alerts.md");
    let heads: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    let alerts = alerts();
    let names: Vec<&str> = alerts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        heads, names,
        "docs/alerts.md has the alerts in the order of the rules"
    );
    let tests = yaml("manifests/monitoring/alerts.test.yaml");
    let mut wrong = Vec::new();
    for (name, rule) in &alerts {
        let runbook = format!("docs/alerts.md#{}", name.to_lowercase());
        if rule["annotations"]["runbook"] != runbook.as_str() {
            wrong.push(format!("{name}: its runbook is {runbook}"));
        }
        for fires in [true, false] {
            let cases = tests["tests"].as_array().unwrap().iter();
            let mut cases = cases.flat_map(|test| test["alert_rule_test"].as_array().unwrap());
            let is_one = |case: &Value| {
                let expected = case["exp_alerts"].as_array().unwrap();
                case["alertname"] == name.as_str() && expected.is_empty() != fires
            };
            if !cases.any(is_one) {
                wrong.push(format!("{name}: no test in which it fires is {fires}"));
            }
        }
    }
    expect_none(&wrong, "add it to manifests/monitoring");
}

#[test]
fn promtool_takes_the_rules_and_sees_each_alert_both_ways() {
    let folder = root().join("manifests/monitoring");
    for words in [
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts.test.yaml"],
    ] {
        let named = env::var("MUSTER_PROMTOOL").ok();
        let promtool = named.clone().unwrap_or_else(|| "promtool".into());
        let mut command = Command::new(&promtool);
        command
            .args(words)
            .current_dir(&folder)
            .stdin(Stdio::null());
        let output = match command.output() {
            Err(_) if named.is_none() => {
                // Not `eprintln!`, which the test runner hides.
                let _ = writeln!(
                    io::stderr(),
                    "!!! NOT CHECKED: the alerts by Prometheus itself (there is no promtool on PATH, and no $MUSTER_PROMTOOL; Debian has it in prometheus)"
                );
                return;
            }
            result => result.unwrap_or_else(|e| panic!("{promtool}: {e}")),
        };
        let said = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
}

#[test]
fn the_dashboard_is_one_that_grafana_loads() {
    let board: Value = serde_json::from_str(&read("manifests/monitoring/dashboard.json")).unwrap();
    // What Grafana's loader needs of a dashboard. No uid is fixed, so an import makes one.
    assert!(board["uid"].is_null() && board["id"].is_null());
    assert!(board["title"].is_string() && board["schemaVersion"].as_u64() >= Some(36));
    let mut ids = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let place = &panel["gridPos"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| place[key].as_u64().unwrap());
        assert!(places.insert((x, y)) && x + w <= 24 && h > 0, "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            assert!(target["refId"].is_string(), "{title}");
        }
    }
    let variables = board["templating"]["list"].as_array().unwrap();
    let names: Vec<&str> = variables
        .iter()
        .map(|v| v["name"].as_str().unwrap())
        .collect();
    for expression in of_dashboard() {
        let used = expression.split('$').skip(1).map(|text| {
            let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &text[..end.unwrap_or(text.len())]
        });
        for name in used {
            assert!(
                names.contains(&name),
                "{expression}: there is no variable {name}"
            );
        }
    }
}
