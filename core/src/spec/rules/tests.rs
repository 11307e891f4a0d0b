//! Rules as documents, and what is refused.

use super::*;
use crate::spec::{API_VERSION, FieldError, JobDocument, KIND, Metadata};

fn rule(when: &str, then: &str) -> RuleDocument {
    RuleDocument {
        when: when.into(),
        then: then.into(),
        ..RuleDocument::default()
    }
}

fn codes(codes: &str, then: &str) -> RuleDocument {
    RuleDocument {
        codes: Some(codes.into()),
        ..rule("exit", then)
    }
}

fn checked(rules: Vec<RuleDocument>) -> Result<Vec<Rule>, Vec<FieldError>> {
    checked_in(SpecDocument {
        args: vec!["train.py".into()],
        rules,
        ..SpecDocument::default()
    })
}

/// The rules of a job with this spec and a deadline.
fn checked_in(spec: SpecDocument) -> Result<Vec<Rule>, Vec<FieldError>> {
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: "a".into(),
            namespace: None,
        },
        spec: SpecDocument {
            active_deadline_seconds: Some(60),
            ..spec
        },
    };
    document.check().map(|(_, spec)| spec.rules)
}

fn told(rules: Vec<RuleDocument>) -> String {
    let errors = checked(rules).expect_err("it must be refused");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    errors.join("\n")
}

#[test]
fn rules_are_told_as_they_decide_and_read_back_as_they_were() {
    let budget = RuleDocument {
        limit: Some(3),
        within: Some("60m".into()),
        ..codes("130, 1-100,101 ,50", "restart")
    };
    let signals = RuleDocument {
        signals: vec!["SIGUSR1".into(), "9".into(), "64".into()],
        limit: Some(2),
        ..rule("signal", "restart")
    };
    let first = RuleDocument {
        of: Some("first".into()),
        ..rule("success", "succeed")
    };
    let rules = vec![
        budget,
        signals,
        rule("signal", "fail"),
        first,
        rule("success", "ignore"),
        rule("nodeLost", "fail"),
        rule("evicted", "restart"),
        rule("deadline", "succeed"),
        rule("failure", "fail"),
    ];
    let rules = checked(rules).unwrap();
    let told: Vec<String> = (0..).zip(&rules).map(|(i, rule)| rule.named(i)).collect();
    assert_eq!(
        told,
        [
            "rule 1 (exit codes 1-101,130: restart, at most 3 in 1h)",
            "rule 2 (signal SIGKILL, SIGUSR1, 64: restart, at most 2)",
            "rule 3 (any signal: fail)",
            "rule 4 (success of first: succeed)",
            "rule 5 (success of any: ignore)",
            "rule 6 (nodeLost: fail)",
            "rule 7 (evicted: restart)",
            "rule 8 (deadline: succeed)",
            "rule 9 (failure: fail)",
        ]
    );
    let again: Vec<RuleDocument> = rules.iter().map(Rule::document).collect();
    assert_eq!(checked(again).unwrap(), rules);
    for rule in &rules {
        let line = RuleDocument::read(&rule.to_string()).unwrap();
        assert_eq!(&checked(vec![line]).unwrap()[0], rule, "{rule}");
    }
    let stored = serde_json::to_string(&rules).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Rule>>(&stored).unwrap(), rules);
}

#[test]
fn a_signal_has_the_code_of_a_shell_and_a_code_is_no_signal() {
    let of = |document| checked(vec![document]).unwrap().remove(0).when;
    let retried = of(codes("128-255", "restart"));
    assert!(retried.is_failure(Some(Exit::Signal(9))));
    assert!(retried.is_failure(Some(Exit::Code(137))));
    assert!(!retried.is_failure(Some(Exit::Code(127))));
    assert!(!retried.is_failure(None), "no rank failed");
    let signal = of(rule("signal", "restart"));
    assert!(signal.is_failure(Some(Exit::Signal(9))));
    assert!(!signal.is_failure(Some(Exit::Code(137))));
    let named = of(RuleDocument {
        signals: vec!["SIGUSR1".into()],
        ..rule("signal", "restart")
    });
    assert!(named.is_failure(Some(Exit::Signal(10))));
    assert!(!named.is_failure(Some(Exit::Signal(12))));
    let failure = of(rule("failure", "fail"));
    assert!(failure.is_failure(None) && failure.is_failure(Some(Exit::Code(1))));
}

#[test]
fn what_can_mean_nothing_is_refused_at_its_place() {
    let with = |change: &dyn Fn(&mut RuleDocument), mut document: RuleDocument| {
        change(&mut document);
        told(vec![document])
    };
    for (document, message) in [
        (rule("", "fail"), "spec.rules[0].when: is missing"),
        (rule("failure", ""), "spec.rules[0].then: is missing"),
        (
            rule("crash", "fail"),
            "spec.rules[0].when: is \"crash\", must be one of exit, signal, failure, success, nodeLost, evicted, deadline",
        ),
        (
            rule("failure", "stop"),
            "spec.rules[0].then: is \"stop\", must be one of restart, fail, succeed, ignore",
        ),
        (
            rule("exit", "fail"),
            "spec.rules[0].codes: is missing: name the exit codes, as \"3\" or \"1-127,130\"",
        ),
        (
            codes("0-3", "fail"),
            "spec.rules[0].codes: names 0, which is no failure; use when: success",
        ),
        (
            codes("7-3", "fail"),
            "spec.rules[0].codes: has the range 7-3, which is empty",
        ),
        (
            codes("256", "fail"),
            "spec.rules[0].codes: is \"256\", must be codes from 1 to 255, as \"3\" or \"1-127,130\"",
        ),
        (
            rule("success", "restart"),
            "spec.rules[0].then: is restart, and ranks that ended well are not started again",
        ),
        (
            rule("success", "fail"),
            "spec.rules[0].then: is fail, and a success fails no job",
        ),
        (
            rule("failure", "succeed"),
            "spec.rules[0].then: is succeed, and then no failure would ever be one; name exit codes or signals",
        ),
        (
            codes("3", "ignore"),
            "spec.rules[0].then: is ignore, and a world whose rank has failed cannot go on; use restart",
        ),
        (
            rule("nodeLost", "succeed"),
            "spec.rules[0].then: is succeed, and the loss of a node is no success",
        ),
        (
            rule("deadline", "ignore"),
            "spec.rules[0].then: must be fail or succeed: a deadline that ends nothing is none; leave out activeDeadlineSeconds",
        ),
    ] {
        assert_eq!(told(vec![document]), message);
    }
    let restart = || rule("failure", "restart");
    assert_eq!(
        with(&|rule| rule.limit = Some(0), restart()),
        "spec.rules[0].limit: is 0, which allows no restart; use then: fail"
    );
    assert_eq!(
        with(&|rule| rule.within = Some("1h".into()), restart()),
        "spec.rules[0].within: is the window of a limit, and there is none"
    );
    assert_eq!(
        with(&|rule| rule.limit = Some(1), rule("failure", "fail")),
        "spec.rules[0].limit: belongs to then: restart"
    );
    assert_eq!(
        with(&|rule| rule.limit = Some(1), rule("nodeLost", "restart")),
        "spec.rules[0].limit: counts failures of the job, never those of nodes"
    );
    assert_eq!(
        with(&|rule| rule.codes = Some("3".into()), restart()),
        "spec.rules[0].codes: belongs to when: exit"
    );
    assert_eq!(
        with(&|rule| rule.of = Some("all".into()), restart()),
        "spec.rules[0].of: belongs to when: success"
    );
    assert_eq!(
        with(
            &|rule| rule.signals = vec!["SIGFOO".into()],
            rule("signal", "fail")
        ),
        "spec.rules[0].signals[0]: is \"SIGFOO\", must be a signal, as SIGUSR1, or its number from 1 to 64"
    );
    assert_eq!(
        with(
            &|rule| (rule.limit, rule.within) = (Some(1_001), Some("1h".into())),
            restart()
        ),
        "spec.rules[0].limit: is 1001, must be between 1 and 1000"
    );
    assert_eq!(
        with(
            &|rule| rule.of = Some("all".into()),
            rule("success", "ignore")
        ),
        "spec.rules[0].then: is ignore, and a job whose ranks have all ended well is over"
    );
}

#[test]
fn a_line_that_is_no_rule_says_what_one_looks_like() {
    for (line, message) in [
        (
            "exit 3",
            "write WHAT: THEN, as in \"exit codes 1-127: fail\"",
        ),
        (
            "failure soon: fail",
            "\"soon\" is not understood behind \"failure\"",
        ),
        (
            "failure: restart, thrice",
            "\"thrice\" is not understood; write \"at most 3\" or \"at most 3 in 1h\"",
        ),
    ] {
        assert_eq!(RuleDocument::read(line).unwrap_err(), message);
    }
    let short = RuleDocument::read("exit 3: restart at most 2").unwrap();
    assert_eq!(short.codes.as_deref(), Some("3"));
    assert_eq!((short.then.as_str(), short.limit), ("restart", Some(2)));
}

#[test]
fn a_rule_behind_one_that_takes_everything_is_refused() {
    for (first, second) in [
        (rule("failure", "restart"), codes("3", "fail")),
        (codes("1-127", "fail"), codes("3,5", "restart")),
        (rule("signal", "fail"), rule("signal", "restart")),
        (rule("success", "succeed"), rule("success", "ignore")),
        (rule("nodeLost", "fail"), rule("nodeLost", "restart")),
    ] {
        assert_eq!(
            told(vec![first, second]),
            "spec.rules[1]: never decides: spec.rules[0] matches all that it matches"
        );
    }
    assert!(checked(vec![codes("3", "restart"), codes("1-127", "fail")]).is_ok());
    let many = vec![rule("failure", "fail"); RULES_MAX + 1];
    assert_eq!(
        told(many),
        "spec.rules: has 21 items, at most 20 are allowed"
    );
}

#[test]
fn a_rule_about_a_deadline_needs_one() {
    let document = SpecDocument {
        rules: vec![rule("deadline", "succeed")],
        ..SpecDocument::default()
    };
    let mut errors = Errors::default();
    document.check_rules(&[], &mut errors);
    let error = errors.0[0].to_string();
    assert_eq!(
        error,
        "spec.rules[0].when: is deadline, and the job has no activeDeadlineSeconds"
    );
}

/// The errors in rules of a job with a chief, workers and a parameter server.
fn told_with_roles(rules: &[&str]) -> String {
    let role = |name: &str| crate::spec::RoleDocument {
        name: name.into(),
        args: vec!["train.py".into()],
        ..Default::default()
    };
    let rules = rules.iter().map(|rule| RuleDocument::read(rule).unwrap());
    let checked = checked_in(SpecDocument {
        framework: Some("tensorflow".into()),
        roles: ["chief", "worker", "ps"].map(role).into(),
        rules: rules.collect(),
        ..SpecDocument::default()
    });
    let errors = checked.err().unwrap_or_default();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    errors.join("\n")
}

#[test]
fn a_rule_names_a_role_that_there_is_and_that_can_end_so() {
    let line = "exit codes 3 in role worker: restart, at most 2 in 1h";
    let rule = RuleDocument::read(line).unwrap();
    assert_eq!(rule.role.as_deref(), Some("worker"));
    for (rules, says) in [
        (&[line][..], ""),
        (
            &["failure in role master: fail"],
            "spec.rules[0].role: is \"master\", must be one of chief, worker, ps",
        ),
        (
            &["success of all in role ps: succeed"],
            "spec.rules[0].role: is \"ps\", a service, which never ends well by itself",
        ),
        (
            &["deadline in role chief: fail"],
            "spec.rules[0].role: belongs to the end of a member; a deadline ends the whole job",
        ),
        // An earlier rule may leave nothing of a later one.
        (
            &["failure: fail", "exit codes 3 in role worker: restart"],
            "spec.rules[1]: never decides: spec.rules[0] matches all that it matches",
        ),
        (
            &[
                "failure in role worker: fail",
                "any signal in role worker: restart",
            ],
            "spec.rules[1]: never decides: spec.rules[0] matches all that it matches",
        ),
        (
            &[
                "failure in role worker: fail",
                "failure in role ps: restart",
            ],
            "",
        ),
        (&["failure in role worker: fail", "failure: restart"], ""),
        (
            &[
                "success of first: succeed",
                "success of first in role worker: succeed",
            ],
            "",
        ),
    ] {
        assert_eq!(told_with_roles(rules), says, "{rules:?}");
    }
    let without = vec![RuleDocument::read("failure in role worker: fail").unwrap()];
    assert_eq!(
        told(without),
        "spec.rules[0].role: is \"worker\", and the job has no roles"
    );
}
