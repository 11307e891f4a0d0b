use serde_json::{Value, json};

use super::*;

const AGENT: &str = "system:serviceaccount:muster-system:muster-agent";

fn rules() -> Tokens {
    Tokens {
        pods: false,
        audience: "muster".into(),
        agents: Some("muster-system/muster-agent".parse().unwrap()),
        users: false,
        again_after: std::time::Duration::ZERO,
    }
}

fn extra(pairs: &[(&str, &[&str])]) -> Value {
    let key = |name: &str| format!("authentication.kubernetes.io/{name}");
    pairs
        .iter()
        .map(|(name, values)| (key(name), json!(values)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

const BOUND: [(&str, &[&str]); 4] = [
    ("pod-name", &["agent-x"]),
    ("pod-uid", &["u1"]),
    ("node-name", &["n1"]),
    ("node-uid", &["u2"]),
];

/// The status of a good review, with these parts changed.
fn judged(change: impl FnOnce(&mut Value)) -> Result<Proof, Refused> {
    let mut status = json!({
        "authenticated": true,
        "audiences": ["muster"],
        "user": { "username": AGENT, "uid": "u0", "extra": extra(&BOUND) },
    });
    change(&mut status);
    rules().check(serde_json::from_value(status).unwrap(), 7)
}

/// The claims with this one's values in place of its own.
fn with(name: &str, values: &'static [&'static str]) -> Value {
    let changed = BOUND.map(|(own, value)| (own, if own == name { values } else { value }));
    extra(&changed)
}

/// The claims without these.
fn without(names: &[&str]) -> Value {
    let left: Vec<_> = (BOUND.into_iter())
        .filter(|(name, _)| !names.contains(name))
        .collect();
    extra(&left)
}

#[test]
fn a_pod_of_the_agents_account_is_the_agent_of_its_node() {
    let host = Principal::new(Kind::Host, "n1").unwrap();
    let expected = Proof::Whole(Reviewed::Agent(host));
    assert_eq!(judged(|_| {}), Ok(expected.clone()));
    // Other claims, and other audiences beside ours, take nothing away.
    let more = |status: &mut Value| {
        status["audiences"] = json!(["other", "muster"]);
        status["user"]["extra"]["authentication.kubernetes.io/credential-id"] = json!(["JTI=1"]);
    };
    assert_eq!(judged(more), Ok(expected));
}

#[test]
fn a_server_that_says_nothing_of_nodes_is_asked_for_the_pod() {
    let old = |status: &mut Value| status["user"]["extra"] = without(&["node-name", "node-uid"]);
    let proof = Proof::Pod {
        name: "agent-x".into(),
        uid: "u1".into(),
    };
    assert_eq!(judged(old), Ok(proof));
}

/// One changed part of a good review, and what is said of it.
type Case = (&'static str, fn(&mut Value), &'static str);

#[test]
fn every_check_refuses_by_itself() {
    let cases: [Case; 17] = [
        (
            "not authenticated",
            |s| s["authenticated"] = json!(false),
            "does not accept the token",
        ),
        (
            "nothing said",
            |s| *s = json!({}),
            "does not accept the token",
        ),
        (
            "authenticated, with an error",
            |s| s["error"] = json!("token lookup failed"),
            "does not accept the token: token lookup failed",
        ),
        (
            "no audience, as of a server that knows none",
            |s| s["audiences"] = json!(null),
            "this coordinator takes tokens for muster",
        ),
        (
            "another audience",
            |s| s["audiences"] = json!(["muster.evil", "https://kubernetes.default.svc"]),
            "the token is for muster.evil, https://kubernetes.default.svc, and",
        ),
        (
            "the same account of another namespace",
            |s| s["user"]["username"] = json!("system:serviceaccount:team-a:muster-agent"),
            "only pods of the service account muster-system/muster-agent are agents",
        ),
        (
            "another account of the namespace",
            |s| s["user"]["username"] = json!("system:serviceaccount:muster-system:muster-agent2"),
            "only pods of the service account",
        ),
        (
            "a person who is called nearly so",
            |s| s["user"]["username"] = json!("SYSTEM:serviceaccount:muster-system:muster-agent"),
            "only pods of the service account",
        ),
        (
            "no user",
            |s| s["user"] = json!(null),
            "only pods of the service account",
        ),
        (
            "no pod: a token of `kubectl create token`",
            |s| s["user"]["extra"] = json!({}),
            "says nothing of authentication.kubernetes.io/pod-name",
        ),
        (
            "bound to a node and to no pod",
            |s| s["user"]["extra"] = without(&["pod-name", "pod-uid"]),
            "says nothing of authentication.kubernetes.io/pod-name",
        ),
        (
            "two pods",
            |s| s["user"]["extra"] = with("pod-name", &["agent-x", "agent-y"]),
            "pod-name, or more than one thing",
        ),
        (
            "two pod UIDs",
            |s| s["user"]["extra"] = with("pod-uid", &["u1", "u9"]),
            "pod-uid, or more than one thing",
        ),
        (
            "two nodes",
            |s| s["user"]["extra"] = with("node-name", &["n1", "n2"]),
            "node-name, or more than one thing",
        ),
        (
            "two node UIDs",
            |s| s["user"]["extra"] = with("node-uid", &["u2", "u3"]),
            "node-uid, or more than one thing",
        ),
        (
            "half of the node's claims",
            |s| s["user"]["extra"] = without(&["node-uid"]),
            "says nothing of authentication.kubernetes.io/node-uid",
        ),
        (
            "no name of a node",
            |s| s["user"]["extra"] = with("node-name", &["../n1"]),
            "cannot be a node's name",
        ),
    ];
    for (what, change, says) in cases {
        let refused = judged(change).unwrap_err();
        assert!(refused.to_string().contains(says), "{what}: {refused}");
    }
}

#[test]
fn a_good_token_of_somebody_else_is_not_allowed_and_a_bad_one_proves_nothing() {
    let other = |s: &mut Value| s["user"]["username"] = json!("ann");
    let code = |refused: Refused| refused.status().code();
    assert_eq!(
        code(judged(other).unwrap_err()),
        tonic::Code::PermissionDenied
    );
    let bad = |s: &mut Value| s["authenticated"] = json!(false);
    assert_eq!(code(judged(bad).unwrap_err()), tonic::Code::Unauthenticated);
    let long = |s: &mut Value| s["error"] = json!(format!("a\nb{}", "x".repeat(900)));
    let said = judged(|s| (bad(s), long(s)).1).unwrap_err().to_string();
    assert!(said.len() < 400 && !said.contains('\n'), "{said}");
}

#[test]
fn everybody_else_is_a_user_where_users_are_served() {
    let judge = |name: String, extra: Value| {
        let status = json!({
            "authenticated": true,
            "audiences": ["muster"],
            "user": { "username": name, "uid": "u", "groups": ["g"], "extra": extra },
        });
        let rules = Tokens {
            users: true,
            ..rules()
        };
        rules.check(serde_json::from_value(status).unwrap(), 7)
    };
    let expected = KubernetesUser {
        name: "ann".into(),
        uid: "u".into(),
        groups: vec!["g".into()],
        extra: BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]),
        expires_us: 7,
    };
    assert_eq!(
        judge("ann".into(), json!({ "k": ["v"] })),
        Ok(Proof::Whole(Reviewed::User(expected)))
    );
    // The agents' account is never a user, however its token was made.
    assert_eq!(
        judge(AGENT.into(), json!({})),
        Err(Refused::Claim(POD_NAME))
    );
    for bad in [String::new(), "a\nb".into(), "x".repeat(USER_NAME_MAX + 1)] {
        assert_eq!(judge(bad, json!({})), Err(Refused::UserName));
    }
}
