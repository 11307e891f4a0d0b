//! The audit trail of a running coordinator, and the commands on its machine that are in it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use muster_coordinator::trust::{self, Role};
use muster_proto::v1::{self, agent_message::Message as FromAgent};
use muster_rpc::{
    Clients, enroll,
    identity::{Kind, Principal},
};
use tonic::Code;

use crate::{
    access::Secure,
    agent::{hello, say},
    cluster::{Cluster, Holder},
    process::PROGRAM,
    server::{Server, spec, within},
    tokens::{mint, whoami},
};

async fn entries(of: &Clients, request: v1::ListAuditRequest) -> Vec<v1::AuditEntry> {
    let mut stream = of.audit().list(request).await.unwrap().into_inner();
    let mut entries = Vec::new();
    while let Some(page) = stream.message().await.unwrap() {
        entries.extend(page.entries);
    }
    entries
}

/// Waits until the trail is as wanted, and returns it without the calls that look at it.
async fn until(of: &Clients, wanted: impl Fn(&[v1::AuditEntry]) -> bool) -> Vec<v1::AuditEntry> {
    within(async {
        loop {
            let mut found = entries(of, v1::ListAuditRequest::default()).await;
            found.retain(|entry| entry.what != "events --audit");
            if wanted(&found) {
                return found;
            }
        }
    })
    .await
}

/// `WHO: WHAT OBJECT RESULT CODE`
fn line(entry: &v1::AuditEntry) -> String {
    let v1::AuditEntry {
        who,
        what,
        object,
        result,
        code,
        ..
    } = entry;
    format!("{who}: {what} {object} {result} {code}")
}

fn job(namespace: &str) -> Option<v1::JobRef> {
    Some(v1::JobRef {
        namespace: namespace.into(),
        name: "job".into(),
    })
}

fn submit(namespace: &str, validate_only: bool) -> v1::SubmitRequest {
    let secret = v1::EnvVar {
        name: "PASSWORD".into(),
        value: "hunter2".into(),
        ..v1::EnvVar::default()
    };
    v1::SubmitRequest {
        r#ref: job(namespace),
        spec: Some(v1::JobSpec {
            env: vec![secret],
            ..spec(1)
        }),
        validate_only,
        ..v1::SubmitRequest::default()
    }
}

#[tokio::test]
async fn every_change_secret_and_refusal_is_in_the_trail_with_its_result() {
    let secure = Secure::start().await;
    let operator = secure.user("op", Some((Role::Operator, &[]))).await;
    let operator = secure.as_whom(&operator).await;
    let token = secure.token(Kind::Host, None, 1);
    let n1 = secure.join(&token, "n1").await.unwrap();
    let own = secure
        .user("ann", Some((Role::Submitter, &["team-a"])))
        .await;
    let ann = secure.as_whom(&own).await;

    within(ann.jobs().submit(submit("team-a", true)))
        .await
        .unwrap();
    within(ann.jobs().submit(submit("team-a", false)))
        .await
        .unwrap();
    let scale = v1::ScaleRequest {
        r#ref: job("team-a"),
        nodes: 99,
    };
    within(ann.jobs().scale(scale)).await.unwrap_err();
    let gone = v1::JobRef {
        name: "gone".into(),
        ..job("team-a").unwrap()
    };
    let cancel = |r#ref| v1::CancelRequest { r#ref };
    within(ann.jobs().cancel(cancel(Some(gone))))
        .await
        .unwrap_err();
    within(ann.jobs().cancel(cancel(job("team-b"))))
        .await
        .unwrap_err();
    let logs = v1::LogsRequest {
        r#ref: job("team-a"),
        ..v1::LogsRequest::default()
    };
    within(ann.jobs().logs(logs)).await.unwrap_err();
    let cordon = |name: &str| v1::CordonRequest {
        name: name.into(),
        by: "somebody else".into(),
        ..v1::CordonRequest::default()
    };
    within(ann.nodes().cordon(cordon("n1"))).await.unwrap_err();
    // Looking is not in the trail, unless it was refused.
    let get = |namespace| v1::GetJobRequest {
        r#ref: job(namespace),
    };
    within(ann.jobs().get(get("team-a"))).await.unwrap();
    within(ann.jobs().get(get("team-b"))).await.unwrap_err();
    within(enroll::renew(&own, &secure.address)).await.unwrap();
    within(operator.nodes().cordon(cordon("n9")))
        .await
        .unwrap_err();

    // A host says in its first message which node it is.
    let host = secure.as_whom(&n1).await;
    let (up, messages) = tokio::sync::mpsc::channel(1);
    up.send(say(FromAgent::Hello(hello("n2")))).await.unwrap();
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    let mut down = within(host.agents().session(messages))
        .await
        .unwrap()
        .into_inner();
    within(down.message()).await.unwrap_err();

    let found = until(&operator, |found| {
        found.iter().any(|entry| entry.what == "session")
    })
    .await;
    let lines: Vec<String> = found.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "anonymous: login user/op Allowed ",
            "anonymous: join host/n1 Allowed ",
            "anonymous: login user/ann Allowed ",
            "user/ann: submit --dry-run=server job/team-a/job Allowed ",
            "user/ann: submit job/team-a/job Allowed ",
            "user/ann: scale job/team-a/job Failed InvalidArgument",
            "user/ann: cancel job/team-a/gone Failed NotFound",
            "user/ann: cancel job/team-b/job Denied PermissionDenied",
            "user/ann: logs job/team-a/job Failed FailedPrecondition",
            "user/ann: cordon  Denied PermissionDenied",
            "user/ann: get job job/team-b/job Denied PermissionDenied",
            "user/ann: renew  Allowed ",
            "user/op: cordon node/n9 Failed NotFound",
            "host/n1: session node/n2 Denied PermissionDenied",
        ]
    );
    let reasons = found.iter().filter(|entry| !entry.reason.is_empty());
    let reasons: Vec<&str> = reasons.map(|entry| &*entry.reason).collect();
    let [cancel, cordon, get, session] = reasons[..] else {
        panic!("one for each that was denied: {reasons:?}");
    };
    assert!(cancel.starts_with("user/ann has no role in namespace \"team-b\""));
    assert!(cordon.contains("has the role submitter, and this needs operator"));
    assert_eq!(get, cancel);
    assert!(
        session.contains("is for node n1, and the agent says that it is n2")
            && session.contains("--node-name n1"),
        "{session}"
    );
    assert!(
        found
            .iter()
            .all(|entry| entry.from.starts_with("127.0.0.1:"))
    );
    assert!(found.is_sorted_by_key(|entry| entry.at_unix_us));

    // The newest ones, and none that are older than the caller asks for.
    let newest = v1::ListAuditRequest {
        limit: 1,
        ..v1::ListAuditRequest::default()
    };
    // Looking at the trail is in it, too: as soon as the look before this one is written.
    within(async {
        loop {
            let found = entries(&operator, newest).await;
            assert_eq!(found.len(), 1);
            if found[0].what == "events --audit" {
                return;
            }
        }
    })
    .await;
    let recent = v1::ListAuditRequest {
        within_us: 1,
        ..v1::ListAuditRequest::default()
    };
    assert_eq!(within(entries(&operator, recent)).await, []);

    let folder = secure.path().join("audit");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("audit.jsonl")), 0o600);
    let text = fs::read_to_string(folder.join("audit.jsonl")).unwrap();
    for secret in [
        "hunter2",
        "PASSWORD",
        &token,
        token.split_once('.').unwrap().1,
    ] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn strangers_fill_no_trail() {
    let secure = Secure::start_with(|settings| {
        settings.audit.strangers = Duration::from_millis(100);
    })
    .await;
    let operator = secure.user("op", Some((Role::Operator, &[]))).await;
    let operator = secure.as_whom(&operator).await;
    let stranger = secure.anonymous().await;
    let mut calls = 0;
    for _ in 0..100 {
        let listed = within(stranger.jobs().list(v1::ListJobsRequest::default())).await;
        assert_eq!(listed.unwrap_err().code(), Code::Unauthenticated);
        let join = v1::JoinRequest::default();
        within(stranger.access().join(join)).await.unwrap_err();
        calls += 2;
    }
    let of_strangers = |found: &[v1::AuditEntry]| -> Vec<u64> {
        let of_them = found.iter().filter(|entry| entry.what == "calls");
        of_them.map(|entry| entry.count).collect()
    };
    let found = until(&operator, |found| {
        of_strangers(found).iter().sum::<u64>() == calls
    })
    .await;
    let others: Vec<String> = (found.iter())
        .filter(|entry| entry.what != "calls")
        .map(line)
        .collect();
    assert_eq!(others, ["anonymous: login user/op Allowed "]);
    let counts = of_strangers(&found);
    assert!(counts.len() < 60, "one entry for many calls: {counts:?}");
}

/// What stands where the folder should be cannot be written to, as a full disk.
#[tokio::test]
async fn a_trail_that_cannot_be_written_stops_nobody_and_says_later_what_is_missing() {
    let state = tempfile::tempdir().unwrap();
    fs::write(state.path().join("audit"), "").unwrap();
    let path = state.path().join("audit");
    let server = Server::start_with_trail(state, |audit| {
        audit.strangers = Duration::from_millis(20);
    })
    .await;
    for name in ["one", "two", "three"] {
        Box::pin(within(server.submit(name, spec(1)))).await;
    }
    within(server.job("three")).await;
    fs::remove_file(path).unwrap();
    let told = |found: &[v1::AuditEntry]| {
        let lost = found.iter().filter(|entry| entry.result == "Lost");
        let lost: u64 = lost.map(|entry| entry.count).sum();
        let written = found.iter().filter(|entry| entry.what == "submit").count() as u64;
        (lost, lost + written)
    };
    // The last of them may still be on its way to the disk when the loss of others is written.
    let found = until(&server.clients, |found| {
        let (lost, all) = told(found);
        lost > 0 && all >= 3
    })
    .await;
    assert_eq!(told(&found).1, 3, "{found:?}");
}

#[tokio::test]
async fn without_tls_it_says_which_user_of_this_machine_it_was() {
    let server = Server::start().await;
    Box::pin(within(server.submit("job", spec(1)))).await;
    let found = until(&server.clients, |found| !found.is_empty()).await;
    let own = match muster_rpc::peer::own_user() {
        0 => "root".to_owned(),
        own => format!("user {own}"),
    };
    assert_eq!(
        line(&found[0]),
        format!("{own}: submit job/default/job Allowed ")
    );
}

fn command(state: &Path, line: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MUSTER_")) {
        command.env_remove(name);
    }
    command
        .args(line.split(' '))
        .arg("--state-dir")
        .arg(state)
        .output()
        .unwrap()
}

fn said(state: &Path, line: &str) -> String {
    let output = command(state, line);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {why}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn tokens_and_users_are_listed_and_deleted_and_the_trail_says_by_whom() {
    let secure = Secure::start().await;
    let operator = secure.user("op", Some((Role::Operator, &[]))).await;
    let state = secure.path();
    assert_eq!(said(state, "token list"), "");
    let token = said(state, "token create --host --uses 3 --ttl 2h");
    let (id, secret) = token.trim().split_once('.').unwrap();
    said(
        state,
        "token create --user ann --role submitter --namespace team-a",
    );
    said(state, "deny user/mallory");

    let listed = said(state, "token list");
    let lines: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["ID", "FOR", "USES", "EXPIRES"]);
    assert_eq!(lines[1][1..], ["user/ann", "1", "in", "59m"]);
    assert_eq!(lines[2], [&id[..8], "host", "3", "in", "119m"]);
    let listed = said(state, "token list -o json");
    assert!(!listed.contains(secret) && !listed.contains(id), "{listed}");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[1]["for"], "host");
    assert_eq!(
        said(state, "user list"),
        "NAME      ROLE        NAMESPACES   DENIED\n\
         ann       submitter   team-a       no\n\
         mallory   -           -            yes\n\
         op        operator    (all)        no\n"
    );
    let users: serde_json::Value = serde_json::from_str(&said(state, "user list -o json")).unwrap();
    assert_eq!(users[0]["namespaces"][0], "team-a");

    let unknown = command(state, "token delete 0000000000000000");
    assert!(!unknown.status.success());
    let why = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        why.contains("00000000: no token has this id; `muster-coordinator token list`"),
        "{why}"
    );
    said(state, &format!("token delete {}", &id[..8]));
    let refused = secure.join(token.trim(), "n1").await.unwrap_err();
    assert!(
        refused.to_string().starts_with("the token is not known"),
        "{refused}"
    );
    said(state, "user delete ann");
    let again = command(state, "user delete ann");
    let why = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        why.contains("user/ann has no role; `muster-coordinator user list`"),
        "{why}"
    );

    let operator = secure.as_whom(&operator).await;
    let found = until(&operator, |found| found.len() >= 9).await;
    let local: Vec<String> = (found.iter())
        .filter(|entry| entry.from == "local")
        .map(|entry| line(entry).split_once(": ").unwrap().1.to_owned())
        .collect();
    assert_eq!(
        local,
        [
            "token create --host --uses 3  Allowed ",
            "user set --role submitter --namespace team-a user/ann Allowed ",
            "token create --user user/ann Allowed ",
            "deny user/mallory Allowed ",
            "token delete token/00000000 Failed Unknown",
            &format!("token delete token/{} Allowed ", &id[..8]),
            "user delete user/ann Allowed ",
            "user delete user/ann Failed Unknown",
        ]
    );
}

#[tokio::test]
async fn what_a_user_has_open_ends_when_it_is_denied_or_has_less_of_a_role() {
    let secure = Secure::start().await;
    let grants = trust::grants(secure.path()).unwrap();
    let ann = secure.user("ann", Some((Role::Submitter, &[]))).await;
    let ann = secure.as_whom(&ann).await;
    let bob = secure
        .user("bob", Some((Role::Submitter, &["team-a"])))
        .await;
    let bob = secure.as_whom(&bob).await;
    within(ann.jobs().submit(submit("team-a", false)))
        .await
        .unwrap();
    let watch = v1::WatchJobsRequest::default;
    let mut of_ann = within(ann.jobs().watch(watch()))
        .await
        .unwrap()
        .into_inner();
    let mut of_bob = within(bob.jobs().watch(watch()))
        .await
        .unwrap()
        .into_inner();
    let logs = v1::LogsRequest {
        r#ref: job("team-a"),
        follow: true,
        ..v1::LogsRequest::default()
    };
    let mut logs = within(ann.jobs().logs(logs)).await.unwrap().into_inner();
    let wait = v1::WaitRequest {
        r#ref: job("team-a"),
        wait_for: v1::WaitFor::Complete.into(),
        ..v1::WaitRequest::default()
    };
    let waiting = ann.clone();
    let waited = tokio::spawn(async move { waiting.jobs().wait(wait).await });
    within(of_ann.message()).await.unwrap();
    within(of_bob.message()).await.unwrap();

    grants
        .deny(&Principal::new(Kind::User, "ann").unwrap(), true)
        .unwrap();
    let denied = [
        within(of_ann.message()).await.unwrap_err(),
        within(logs.message()).await.unwrap_err(),
        within(waited).await.unwrap().unwrap_err(),
    ];
    for status in denied {
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        assert!(
            status.message().contains("was denied by an operator"),
            "{status}"
        );
    }

    // A denial of another is nothing to Bob. The loss of the role is.
    assert!(grants.remove("bob").unwrap());
    let ended = within(of_bob.message()).await.unwrap_err();
    assert_eq!(
        ended.message(),
        "the role of user/bob has been changed; call again"
    );
}

#[tokio::test]
async fn what_a_token_is_refused_for_is_in_the_trail() {
    let cluster = Cluster::start().await;
    let secure = Secure::start_with(|settings| {
        settings.kubernetes = Some(cluster.tokens());
        settings.audit.strangers = Duration::from_millis(100);
    })
    .await;
    let operator = secure.user("op", Some((Role::Operator, &[]))).await;
    let operator = secure.as_whom(&operator).await;
    // A good token, and an agent that says that it is of another node.
    let own = mint(&cluster, Holder::agent("node-1"));
    let agent = secure.with_token(&own).await;
    let (up, messages) = tokio::sync::mpsc::channel(1);
    up.send(say(FromAgent::Hello(hello("node-2"))))
        .await
        .unwrap();
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    let down = within(agent.agents().session(messages)).await.unwrap();
    let told = within(down.into_inner().message()).await.unwrap_err();
    assert!(
        told.message().contains(
            "start it with --node-name node-1, or run an agent in a pod on that other node"
        ),
        "{told}"
    );
    // A token that proves nothing here.
    let other = mint(&cluster, Holder::pod("team-a/web", "node-1"));
    let refused = whoami(&secure.with_token(&other).await).await;
    assert!(refused.is_err());
    let of = |found: &[v1::AuditEntry], what: &str| {
        let mut all = found.iter();
        all.find(|entry| entry.what == what).cloned()
    };
    let found = until(&operator, |found| {
        of(found, "session").is_some() && of(found, "calls").is_some()
    })
    .await;
    let session = of(&found, "session").unwrap();
    assert_eq!(
        line(&session),
        "host/node-1: session node/node-2 Denied PermissionDenied"
    );
    assert_eq!(session.reason, told.message());
    let calls = of(&found, "calls").unwrap();
    assert!(
        calls.who == "anonymous" && calls.reason.contains("only pods of the service account"),
        "{calls:?}"
    );
    assert!(!found.iter().any(|entry| entry.reason.contains(&other)));
}
